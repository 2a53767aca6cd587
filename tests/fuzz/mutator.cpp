#include "fuzz/mutator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace quern::fuzz {

namespace {

// Numbers at the edges of the types that parsers convert to.
constexpr const char* kNumbers[] = {"0",
                                    "-0",
                                    "-1",
                                    "1",
                                    "127",
                                    "255",
                                    "65535",
                                    "65536",
                                    "0.5",
                                    "1e-9",
                                    "1e-400",
                                    "1e30",
                                    "1e400",
                                    "NaN",
                                    "Infinity",
                                    "2147483647",
                                    "4294967296",
                                    "9223372036854775807",
                                    "18446744073709551615",
                                    "1152921504606846976",
                                    "-9223372036854775808",
                                    "99999999999999999999999999",
                                    "null",
                                    "\"7\""};

}  // namespace

std::string Mutator::mutate(const std::string& base, const std::string& other,
                            const std::vector<std::string>& words) {
  std::string text = base;
  for (size_t edits = size_t{1} << below(4); edits > 0; --edits) edit(text, other, words);
  if (text.size() > kMostBytes) text.resize(kMostBytes);
  return text;
}

void Mutator::edit(std::string& text, const std::string& other,
                   const std::vector<std::string>& words) {
  const size_t at = below(text.size() + 1);
  const size_t length = std::min(text.size() - at, size_t{1} << below(10));
  switch (below(12)) {
    case 0:  // a bit
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:  // a byte
      if (at < text.size()) text[at] = static_cast<char>(below(256));
      break;
    case 2: text.insert(at, 1 + below(4), static_cast<char>(below(256))); break;
    case 3: text.erase(at, length); break;
    case 4: text.resize(at); break;
    case 5: text.insert(below(text.size() + 1), text.substr(at, length)); break;
    case 6: replace_number(text); break;
    case 7: write_binary_number(text); break;
    case 8:
      if (!words.empty()) text.insert(at, words[below(words.size())]);
      break;
    case 9: {  // a piece of another input
      const size_t from = below(other.size() + 1);
      text.replace(at, length, other.substr(from, size_t{1} << below(10)));
      break;
    }
    case 10: {  // nesting
      static constexpr const char* kBrackets[] = {"[", "{\"a\":", "(", "\"", "[]", "\\"};
      const std::string one = kBrackets[below(std::size(kBrackets))];
      std::string many;
      for (size_t i = size_t{1} << below(15); i > 0; --i) many += one;
      text.insert(at, many);
      break;
    }
    default:  // a piece moves
      if (length > 0) {
        const std::string piece = text.substr(at, length);
        text.erase(at, length);
        text.insert(below(text.size() + 1), piece);
      }
  }
}

void Mutator::replace_number(std::string& text) {
  std::vector<size_t> begins;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_digit(text[i]) && (i == 0 || !is_digit(text[i - 1]))) begins.push_back(i);
  }
  if (begins.empty()) return;
  const size_t begin = begins[below(begins.size())];
  size_t end = begin;
  while (end < text.size() && is_digit(text[end])) ++end;
  text.replace(begin, end - begin, kNumbers[below(std::size(kNumbers))]);
}

void Mutator::write_binary_number(std::string& text) {
  static constexpr uint64_t kEdges[] = {0,
                                        1,
                                        0x7f,
                                        0xff,
                                        0xffff,
                                        0x7fffffff,
                                        0xffffffff,
                                        uint64_t{1} << 32,
                                        ~uint64_t{0},
                                        uint64_t{1} << 63};
  const uint64_t value = kEdges[below(std::size(kEdges))] + below(3) - 1;
  const size_t width = size_t{1} << below(4);
  if (text.size() < width) return;
  std::memcpy(&text[below(text.size() - width + 1)], &value, width);
}

}  // namespace quern::fuzz
