// Device memory for the tests, between guard bytes and poisoned: a write beyond the end and an
// unwritten element both show.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "support/guard_byte.h"
#include "tensor/cuda_runtime.h"

namespace quern::test {

using testing_support::kGuardByte;

// Skips each test of the fixture on a machine without a GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

template <class T>
class DeviceBuffer {
 public:
  static constexpr int64_t kGuard = 256;    // keeps what cudaMalloc aligns aligned
  static constexpr uint8_t kPoison = 0xFF;  // NaN in every float type, -1 in the integers

  // n poisoned elements. `shift` elements of misalignment prevent the 16-byte paths.
  explicit DeviceBuffer(int64_t n, int64_t shift = 0)
      : n_(n), offset_(kGuard + shift * static_cast<int64_t>(sizeof(T))) {
    memory_ = static_cast<uint8_t*>(cuda::device_allocate(bytes()));
    QUERN_CHECK(memory_ != nullptr, "test: no device memory for ", bytes(), " bytes");
    poison();
  }
  explicit DeviceBuffer(const std::vector<T>& values, int64_t shift = 0)
      : DeviceBuffer(static_cast<int64_t>(values.size()), shift) {
    upload(values);
  }
  ~DeviceBuffer() { cuda::device_release(memory_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* get() { return reinterpret_cast<T*>(memory_ + offset_); }
  int64_t size() const { return n_; }

  void poison() {
    std::vector<uint8_t> image(static_cast<size_t>(bytes()), kGuardByte);
    std::fill_n(image.begin() + offset_, payload(), kPoison);
    transfer(memory_, image.data(), bytes());
  }
  void upload(const std::vector<T>& values) { transfer(get(), values.data(), payload()); }
  std::vector<T> download() {
    std::vector<T> values(static_cast<size_t>(n_));
    transfer(values.data(), get(), payload());
    return values;
  }
  // Fails the test when a byte around the elements changed.
  void expect_guards_intact() {
    std::vector<uint8_t> image(static_cast<size_t>(bytes()));
    transfer(image.data(), memory_, bytes());
    const auto check = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(image[static_cast<size_t>(i)], kGuardByte)
            << "byte " << i - offset_ << " relative to a buffer of " << payload() << " bytes";
      }
    };
    check(0, offset_);
    check(offset_ + payload(), bytes());
  }

 private:
  int64_t payload() const { return n_ * static_cast<int64_t>(sizeof(T)); }
  int64_t bytes() const { return offset_ + payload() + kGuard; }
  // Waits for the device before and after, so that kernels on any stream have ended.
  static void transfer(void* dst, const void* src, int64_t bytes) {
    cuda::synchronize_device();
    cuda::copy(dst, src, bytes, {});
    cuda::synchronize_device();
  }

  int64_t n_, offset_;
  uint8_t* memory_ = nullptr;
};

}  // namespace quern::test
