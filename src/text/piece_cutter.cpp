#include "text/piece_cutter.h"

#include <algorithm>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

constexpr int kMostBorders = 64;

bool begins_with_space(std::string_view text) {
  return text.empty() || space_prefix(text) > 0;
}

bool ends_with_space(std::string_view text) {
  return text.empty() || space_suffix(text) > 0;
}

// The last start of a character at or before `at`; `at` itself in invalid UTF-8.
size_t character_before(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at; ++back) {
    if (at - back == text.size() || !continues_utf8(text[at - back])) return at - back;
  }
  return at;
}

}  // namespace

PieceCutter::PieceCutter(const Tokenizer& tokenizer, PieceSizes sizes)
    : encoder_(tokenizer.encoder()), sizes_(sizes), bytes_(tokenizer.kind() == "bytes") {
  QUERN_CHECK(sizes.target >= 8 && sizes.longest >= sizes.target, "piece sizes are ", sizes.target,
              " to ", sizes.longest, " bytes, expected 8 or more, the smaller first");
}

Piece PieceCutter::next(std::string_view text, bool complete) {
  QUERN_CHECK(complete || text.size() >= lookahead(), "cutting a document: found ", text.size(),
              " bytes of it, expected ", lookahead(), " or all");
  if (complete && text.size() <= sizes_.target) return {text.size(), 0, true};
  if (bytes_) return {sizes_.target, 0, false};
  const Border border = find_border(text);
  if (border.end > 0) return {border.end, border.gap, false};
  if (complete && text.size() <= sizes_.longest) return {text.size(), 0, true};
  if (border.first_line > 0) return {border.first_line, 0, false};
  return {character_before(text, sizes_.longest), 0, false};
}

PieceCutter::Border PieceCutter::find_border(std::string_view text) const {
  const size_t last = std::min(sizes_.longest, text.size() - 1);
  size_t first_line = 0;
  int seen = 0;
  for (size_t at = sizes_.target; at <= last && seen < kMostBorders; ++at) {
    const char c = text[at], before = text[at - 1];
    if (before == '\n') {
      if (ends_with_space(text.substr(0, at - 1)) || begins_with_space(text.substr(at))) continue;
      if (safe(text, at, at)) return {at, 0, first_line};
      if (first_line == 0) first_line = at;
      ++seen;
    } else if (c == ' ') {
      if (ends_with_space(text.substr(0, at)) || begins_with_space(text.substr(at + 1))) continue;
      if (safe(text, at, at)) return {at, 0, first_line};
      if (safe(text, at, at + 1)) return {at, 1, first_line};
      ++seen;
    }
  }
  return {0, 0, first_line};
}

bool PieceCutter::safe(std::string_view text, size_t end, size_t begin) const {
  const size_t from = character_before(text, end - std::min(end, sizes_.probe));
  const size_t to = character_before(text, std::min(text.size(), begin + sizes_.probe));
  std::vector<int32_t> whole, parts;
  encoder_->encode(text.substr(from, to - from), whole);
  encoder_->encode(text.substr(from, end - from), parts);
  encoder_->encode(text.substr(begin, to - begin), parts);
  return whole == parts;
}

}  // namespace quern
