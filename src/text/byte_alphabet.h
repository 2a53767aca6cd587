// GPT-2's alphabet for the bytes of byte-level BPE in tokenizer.json. Printable bytes stand for
// themselves; the others map to U+0100 and up, in order.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace quern {

class ByteAlphabet {
 public:
  ByteAlphabet() {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      points_[byte] = printable ? byte : next++;
      byte_of_[points_[byte]] = static_cast<int>(byte);
    }
  }

  // The character that stands for a byte: one or two bytes of UTF-8.
  std::string character(int byte) const {
    const uint32_t point = points_[static_cast<size_t>(byte)];
    if (point < 0x80) return {static_cast<char>(point)};
    return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
  }

  // The bytes that a token's characters stand for. Errors begin with `path`, the token's location.
  std::string bytes(const std::string& token, const std::string& path) const {
    std::string out;
    for (size_t i = 0; i < token.size(); ++i) {
      uint32_t point = static_cast<unsigned char>(token[i]);
      if (point >= 0x80) {
        const bool two = (point & 0xE0) == 0xC0 && i + 1 < token.size();
        point =
            two ? (point & 0x1F) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3F) : 0xFFFF;
      }
      const auto found = byte_of_.find(point);
      QUERN_CHECK(found != byte_of_.end(), path, ": the token '", token,
                  "' has a character that stands for no byte, expected the alphabet of byte-level "
                  "BPE");
      out.push_back(static_cast<char>(found->second));
    }
    return out;
  }

 private:
  std::array<uint32_t, 256> points_;
  std::unordered_map<uint32_t, int> byte_of_;
};

}  // namespace quern
