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
  const auto replace = [&](std::string_view before, std::string_view after) {
    const size_t at = what.find(before);
    if (at != std::string::npos) what.replace(at, before.size(), after);
  };
  if (what.starts_with("[json.exception.")) what.erase(0, what.find("] ") + 2);
  std::string read;  // the text of the token that is wrong
  const size_t last = what.find("; last read: "), expected = what.rfind("; expected ");
  if (last != std::string::npos) {
    const bool more = expected != std::string::npos && expected > last;
    read = what.substr(last + 13, more ? expected - last - 13 : std::string::npos);
    what.erase(last, more ? expected - last : std::string::npos);
  }
  replace("parse error at ", "");
  const size_t syntax = what.find("syntax error while parsing "), dash = what.find(" - ");
  if (syntax != std::string::npos && dash != std::string::npos && dash > syntax) {
    what.erase(syntax, dash + 3 - syntax);
  }
  replace("unexpected ", "found ");
  replace("; expected ", ", expected ");
  constexpr size_t kLongestQuote = 40;  // the text may be as long as the file
  if (!read.empty() && read.size() <= kLongestQuote)
    replace("invalid literal", cat("found ", read));
  return what;
}

}  // namespace quern
