// Self-contained HTML pages: a template with marks, and data inside a <script> element.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace quern {

struct PagePart {
  std::string_view mark, text;
};

// Replaces each mark by its text. The marks occur once each, in the given order. Throws when one is
// missing.
std::string fill_page(std::string_view page, std::initializer_list<PagePart> parts);

// Escapes "<", so that the JSON cannot end its <script> element. In JSON, "<" occurs only in
// strings.
std::string json_in_script(std::string_view json);

}  // namespace quern
