// Runs a check with the CPU kernels of each level that the build has and the processor runs.
#pragma once

#include <gtest/gtest.h>

#include "kernels/cpu/level.h"

namespace quern::testing_support {

// Calls f() once per level, then uses the best one again.
template <class F>
void at_each_cpu_level(const F& f) {
  for (const std::string& level : kernels::cpu::levels()) {
    SCOPED_TRACE(level);
    kernels::cpu::use_level(level);
    EXPECT_EQ(kernels::cpu::level(), level);
    f();
  }
  kernels::cpu::use_best_level();
}

// Whether the level in use has instructions for products of bfloat16, which add in pairs.
inline bool multiplies_bfloat16() {
  const std::string level = kernels::cpu::level();
  return level == "avx512_bf16" || level == "amx";
}

}  // namespace quern::testing_support
