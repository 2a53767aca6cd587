// The byte around the buffers of the kernel tests, which a kernel must neither change nor use.
#pragma once

#include <cstdint>

namespace quern::testing_support {

// As a float 3e38, as float16 NaN: a sum that reads such an element shows it, also by its norm.
inline constexpr uint8_t kGuardByte = 0x7F;

}  // namespace quern::testing_support
