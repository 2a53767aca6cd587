// FP32 matrix products on BF16 tensor cores. A float has 24 significant bits and is the sum of
// three BF16 numbers of 8 bits each, x = hi + mid + lo. Six of the nine products of parts are above
// 2^-25 of the whole. They are computed and added in FP32:
//   a b = lo hi + hi lo + mid mid + mid hi + hi mid + hi hi
// (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for
// Higher-Precision Computations", 2019, section III). A pass over each operand makes its parts; a
// kernel for Hopper's tensor cores computes the product.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/gemm.h"
#include "kernels/gemm_algorithms.h"

namespace quern::kernels::cuda {

// A block computes tiles of D, kSplitTileRows by `columns`, from blocks of kSplitDepth of K; shared
// memory holds `stages` of these. Microseconds: block_us of such a block of K, tile_us of the start
// and end of a tile.
struct SplitTile {
  int columns, stages;
  double block_us, tile_us;
};
inline constexpr SplitTile kSplitTiles[] = {{128, 4, 0.88, 3.5}, {192, 3, 1.34, 5.0}};
inline constexpr int kSplitTileCount = static_cast<int>(std::size(kSplitTiles));
inline constexpr int kSplitTileRows = 128;
inline constexpr int kSplitDepth = 32;
inline constexpr int kSplitPlanes = 3;  // hi, mid, lo

// How a product is computed: tiles of kSplitTiles[tile], each by `parts` blocks that take a share
// of K. Their sums are added in a fixed order.
struct SplitPlan {
  int tile = 0;
  int parts = 1;
};

// Whether the binary holds the kernel for the current GPU.
bool split_runs();

// Whether the kernel's integers hold the extents of a product with k > 0, each at least 1.
bool split_takes(const GemmProblem& p);

GemmProblem describe(const Gemm& g);  // without types, alignments and workspace

// The plan of the product with split operands; nullopt if it is computed in another way.
std::optional<SplitPlan> plan_of_split(const Gemm& g, const GemmProblem& p, DType input,
                                       Stream stream);

// The fastest plan by estimate, a function of the product's shape alone; nullopt where products on
// CUDA cores are as fast.
std::optional<SplitPlan> choose_split(const GemmProblem& p);

// Bytes of scratch memory, which must be aligned to 256 bytes.
int64_t split_scratch(const GemmProblem& p, const SplitPlan& plan);

// Destination of a product's sums: d = alpha sum + beta d. Every part of K has its own matrices.
struct SplitOutput {
  float* d;
  int64_t ld, matrix_stride, part_stride;
  float alpha, beta;  // beta 0 does not read d
};

// p has the sizes, transposes, batch and repeated operands; a and b are planes of A and B from
// split_planes, of one matrix where an operand repeats.
void split_product(const SplitOutput& out, const bfloat16* a, const bfloat16* b,
                   const GemmProblem& p, const SplitPlan& plan, Stream stream);

// D = alpha op(A) op(B) + beta D for each of p.batch matrices of floats; p as gemm describes it,
// with its leading dimensions. An infinite or NaN input makes its row or column of D NaN.
void split_gemm(float* d, const float* a, const float* b, const GemmProblem& p, float alpha,
                float beta, const SplitPlan& plan, void* scratch, Stream stream);

}  // namespace quern::kernels::cuda
