#include "text/space_mark.h"

namespace quern {

namespace {

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string replaced;
  for (size_t at; (at = text.find(from)) != std::string_view::npos;) {
    replaced.append(text.substr(0, at)) += to;
    text.remove_prefix(at + from.size());
  }
  return replaced.append(text);
}

}  // namespace

std::string marks_for_spaces(std::string_view text) {
  return replace(text, " ", kSpaceMark);
}

std::string spaces_for_marks(std::string_view piece) {
  return replace(piece, kSpaceMark, " ");
}

bool spans_words(std::string_view token) {
  return !token.empty() && word_size(token) < token.size();
}

size_t word_size(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i - 1] == '\n') return i;
    const bool space =
        text[i] == ' ' || (text[i] == kSpaceMark[0] && text.substr(i).starts_with(kSpaceMark));
    if (space && text[i - 1] != ' ' && !text.substr(0, i).ends_with(kSpaceMark)) return i;
  }
  return text.size();
}

}  // namespace quern
