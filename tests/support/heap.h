// operator new of the test programs: it counts the bytes in use and fails on demand. Memory of C
// libraries (zlib, zstd) does not count.
#pragma once

#include <cstdint>

namespace quern::testing_support {

// While it lives, operator new throws std::bad_alloc where the process would have more than `bytes`
// beyond those in use before. One at a time.
class HeapLimit {
 public:
  explicit HeapLimit(int64_t bytes);
  ~HeapLimit();
  HeapLimit(const HeapLimit&) = delete;
  HeapLimit& operator=(const HeapLimit&) = delete;

  bool was_hit() const;
};

// As Allocator::fail_after, for operator new on this thread: after so many more calls for at least
// `least` bytes, one throws std::bad_alloc. -1: none. Returns how many were left.
int64_t fail_new_after(int64_t calls, int64_t least = 1);

}  // namespace quern::testing_support
