// The device of a tensor: the CPU or one GPU.
#pragma once

#include <cstdint>
#include <iosfwd>

namespace quern {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;  // which GPU; 0 on the CPU

  bool is_cuda() const { return type == DeviceType::cuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{DeviceType::cpu, 0};

std::ostream& operator<<(std::ostream& out, const Device& device);  // "cpu" or "cuda:0"

// Whether this build holds CUDA code. A build without it never names a kernels::cuda function.
#ifdef QUERN_WITH_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

}  // namespace quern
