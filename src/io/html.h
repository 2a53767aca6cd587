// Pages of HTML that stand alone: a template with marks, and data inside a <script> element.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace quern {

struct PagePart {
  std::string_view mark, text;
};

// The page with each mark, which stands in it once and in the order given, replaced by its text.
// Throws when one is missing.
std::string fill_page(std::string_view page, std::initializer_list<PagePart> parts);

// JSON that cannot end the <script> element it stands in: "<" occurs in strings alone, where it may
// be written as an escape.
std::string json_in_script(std::string_view json);

}  // namespace quern
