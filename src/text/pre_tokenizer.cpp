#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// PCRE2's \s matches U+180E. Current Unicode does not count it as space, and neither does the
// library for which these patterns were written.
std::string with_unicode_spaces(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else {
      (out += '\\') += escaped;
    }
  }
  return out;
}

}  // namespace

struct SplitPattern::Compiled {
  std::string pattern;
  pcre2_code* code = nullptr;

  ~Compiled() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(const std::string& pattern) : compiled_(std::make_shared<Compiled>()) {
  compiled_->pattern = pattern;
  const std::string translated = with_unicode_spaces(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  QUERN_CHECK(compiled_->code, "the pattern ", pattern,
              " is no regular expression: ", message_of(error), " before '", translated.substr(at),
              "'");
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // without a JIT, PCRE2 interprets
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), &pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;  // end of the last piece
  for (size_t from = 0; from < text.size();) {
    const int found = pcre2_match(compiled_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    QUERN_CHECK(found > 0, "the pattern ", compiled_->pattern, " cannot be matched at byte ", from,
                ": ", message_of(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    const size_t begin = range[0], end = range[1];
    if (begin == end) {  // an empty match cuts nothing
      do ++from;
      while (from < text.size() && continues_utf8(text[from]));
      continue;
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    pieces.push_back(text.substr(begin, end - begin));
    from = done = end;
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace quern
