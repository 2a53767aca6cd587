// A text as one word of a shell's command line, for commands that messages propose.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace quern {

// Unchanged when no shell gives any of its characters a meaning, else in single quotes.
inline std::string shell_word(const std::string& text) {
  static constexpr std::string_view kPlain = "-_./=,:+@%";
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           static_cast<unsigned char>(c) >= 0x80 || kPlain.find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
  std::string word = "'";
  for (const char c : text) c == '\'' ? word += "'\\''" : word += c;
  return word + "'";
}

}  // namespace quern
