// Work whose allocations fail, one after the other.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tensor/context.h"

namespace quern::testing_support {

// Calls work() with the first allocation of `device` failing, then with its second, until none
// fails. After each failure the memory in use is that of before, and after_failure() is called.
// Returns the number of failures.
inline int64_t fail_each(const std::function<void()>& work,
                         const std::function<void()>& after_failure, Device device = kCpu) {
  Allocator& allocator = *Context::current().allocator(device);
  for (int64_t k = 0;; ++k) {
    const int64_t before = allocator.stats().allocated;
    allocator.fail_after(k);
    try {
      work();
      EXPECT_GE(allocator.fail_after(-1), 0) << "allocation " << k << " failed without an error";
      return k;
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(allocator.fail_after(-1), -1);
      EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
    }
    EXPECT_EQ(allocator.stats().allocated, before) << "after the failure of allocation " << k;
    after_failure();
    if (testing::Test::HasFailure()) return k;
  }
}

}  // namespace quern::testing_support
