#include "io/json_guard.h"

#include "base/error.h"

namespace quern {

void check_json_text(std::string_view text, const std::string& place) {
  const size_t zero = text.find('\0');
  QUERN_CHECK(zero == std::string_view::npos, place, " byte ", zero, " is 0, expected JSON text");
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) {
      i += c == '\\';
    } else if (c == '[' || c == '{') {
      QUERN_CHECK(++depth <= kDeepestJson, place, " byte ", i, " opens level ", depth,
                  " of nested values, expected at most ", kDeepestJson);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

std::string json_reason(std::string what) {
  if (what.starts_with("[json.exception.")) what.erase(0, what.find("] ") + 2);
  constexpr std::string_view kPlace = "parse error at ";
  if (what.starts_with(kPlace)) what.erase(0, kPlace.size());
  const size_t read = what.find("; last read: "), expected = what.rfind("; expected ");
  if (read != std::string::npos) {  // this part may be as long as the file
    const bool more = expected != std::string::npos && expected > read;
    what.erase(read, more ? expected - read : std::string::npos);
  }
  return what;
}

}  // namespace quern
