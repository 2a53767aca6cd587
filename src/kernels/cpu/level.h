// The vector instructions of the CPU kernels. They are compiled once per level
// (cmake/CpuLevels.cmake), and the program uses the highest level that its processor has. All
// levels add in the same order and give the same bits, but for Eigen's products (gemm.h) and for
// those of bfloat16 operands, which avx512_bf16 and amx add in pairs (gemm_panels.h).
#pragma once

#include <string>
#include <vector>

namespace quern::kernels::cpu {

// The levels that this build has and this processor runs, the lowest first: avx2, avx512,
// avx512_bf16, amx. A build for one machine alone has the level native, and one for another
// architecture portable.
std::vector<std::string> levels();

// The level in use.
std::string level();

// Uses a level of levels() from now on; throws for another. Not while kernels run.
void use_level(const std::string& name);
void use_best_level();

}  // namespace quern::kernels::cpu
