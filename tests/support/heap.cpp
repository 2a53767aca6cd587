#include "support/heap.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace quern::testing_support {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> in_use{0};
std::atomic<int64_t> limit{kNoLimit};
std::atomic<bool> hit{false};
thread_local int64_t calls_left = -1, least_bytes = 1;

void* take(std::size_t size, std::size_t alignment) {
  const auto bytes = static_cast<int64_t>(size);
  if (calls_left >= 0 && bytes >= least_bytes && calls_left-- == 0) throw std::bad_alloc();
  if (bytes < 0 || bytes > limit - in_use) {
    hit = true;
    throw std::bad_alloc();
  }
  // aligned_alloc wants a multiple of the alignment.
  void* memory =
      alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
          ? std::malloc(size > 0 ? size : 1)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  in_use += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}

void* take_or_null(std::size_t size, std::size_t alignment) noexcept try {
  return take(size, alignment);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void give_back(void* memory) {
  in_use -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

HeapLimit::HeapLimit(int64_t bytes) {
  hit = false;
  limit = in_use + bytes;
}

HeapLimit::~HeapLimit() {
  limit = kNoLimit;
}

bool HeapLimit::was_hit() const {
  return hit;
}

int64_t fail_new_after(int64_t calls, int64_t least) {
  least_bytes = least;
  return std::exchange(calls_left, calls);
}

}  // namespace quern::testing_support

using quern::testing_support::give_back;
using quern::testing_support::take;
using quern::testing_support::take_or_null;

// The forms for arrays call these, and so would those without exceptions, but a sanitizer brings
// its own: memory that it gave would be freed here.
void* operator new(std::size_t size) {
  return take(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return take_or_null(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return take_or_null(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}
