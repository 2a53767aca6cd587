// U+2581: SentencePiece's mark for a space in its pieces.
#pragma once

#include <string>
#include <string_view>

namespace quern {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

std::string marks_for_spaces(std::string_view text);
std::string spaces_for_marks(std::string_view piece);

// A word ends behind a line feed, and before a space or mark that follows neither. If no token of a
// vocabulary spans two words, text can be encoded word by word.
bool spans_words(std::string_view token);
// Bytes of the first word of `text`, which must not be empty.
size_t word_size(std::string_view text);

}  // namespace quern
