// A collective as one rank calls it: everything that must be equal on all ranks.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"

namespace quern {

struct CollectiveCall {
  const char* name = "";  // "gather"
  std::string what;       // "the weights of block 3"
  int64_t count = 0;      // elements of all slices
  int64_t width = 4;      // bytes of an element
  int root = -1;          // -1: none

  // "gather of the weights of block 3"
  std::string title() const { return cat(name, " of ", what); }
  // With the sizes: "gather of the weights of block 3, 1000 x 2 bytes".
  std::string text() const {
    return cat(title(), ", ", count, " x ", width, " bytes",
               root < 0 ? std::string() : cat(" from rank ", root));
  }

  // FNV-1a, of the text and the call's number among a rank's calls.
  uint32_t hash(uint64_t number) const {
    uint32_t hash = 2166136261u;
    for (const unsigned char byte : cat(text(), '\n', number)) hash = (hash ^ byte) * 16777619u;
    return hash;
  }
};

// On the host, unless they are the same memory.
inline void copy_unless_same(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The bytes of all pieces.
inline int64_t bytes_of(const std::vector<RankPiece>& pieces) {
  int64_t bytes = 0;
  for (const RankPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace quern
