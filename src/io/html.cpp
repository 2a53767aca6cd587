#include "io/html.h"

#include "base/error.h"

namespace quern {

std::string fill_page(std::string_view page, std::initializer_list<PagePart> parts) {
  std::string out;
  for (const PagePart& part : parts) {
    const size_t at = page.find(part.mark);
    QUERN_CHECK(at != std::string_view::npos, "page: it has no ", std::string(part.mark));
    out.append(page.substr(0, at)).append(part.text);
    page.remove_prefix(at + part.mark.size());
  }
  return out.append(page);
}

std::string json_in_script(std::string_view json) {
  std::string out;
  for (const char c : json) out += c == '<' ? std::string_view("\\u003c") : std::string_view(&c, 1);
  return out;
}

}  // namespace quern
