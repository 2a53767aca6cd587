#include "kernels/cuda/gemm_split.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/gemm_split_passes.h"
#include "kernels/cuda/gemm_split_product.h"

namespace quern::kernels::cuda {

namespace {

constexpr int64_t kScratchAlignment = 256;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t aligned(int64_t bytes) {
  return ceil_div(bytes, kScratchAlignment) * kScratchAlignment;
}

// The operands as stored. One that repeats is one matrix.
MatrixLayout layout_a(const GemmProblem& p) {
  return {p.stride_a == 0 ? 1 : p.batch, p.transpose_a != 0 ? p.k : p.m,
          p.transpose_a != 0 ? p.m : p.k, p.lda, p.stride_a};
}
MatrixLayout layout_b(const GemmProblem& p) {
  return {p.stride_b == 0 ? 1 : p.batch, p.transpose_b != 0 ? p.n : p.k,
          p.transpose_b != 0 ? p.k : p.n, p.ldb, p.stride_b};
}
MatrixLayout layout_d(const GemmProblem& p) {
  return {p.batch, p.m, p.n, p.ldd, p.stride_d};
}

int64_t plane_elements(const MatrixLayout& layout) {
  return layout.matrices * layout.rows * plane_pitch(layout.columns);
}
int64_t plane_bytes(const MatrixLayout& layout) {
  return aligned(kSplitPlanes * plane_elements(layout) * int64_t{sizeof(bfloat16)});
}

// Sums of the parts of K: rows start at 16 bytes.
int64_t sum_pitch(const GemmProblem& p) {
  return ceil_div(p.n, 4) * 4;
}

// Microseconds on an H200, whose numbers are constants here: the choice must not depend on anything
// but the shape. Rates are bytes and operations a microsecond; the sums of parts stay in L2.
constexpr int64_t kMultiprocessors = 132;
constexpr double kLaunchUs = 2.5, kMemoryRate = 3.7e6, kSumsRate = 1e7, kFmaRate = 45e6;

double product_us(const GemmProblem& p, const SplitPlan& plan) {
  const SplitTile& tile = kSplitTiles[plan.tile];
  const int64_t units =
      ceil_div(p.m, kSplitTileRows) * ceil_div(p.n, tile.columns) * p.batch * plan.parts;
  const int64_t blocks = ceil_div(ceil_div(p.k, kSplitDepth), plan.parts);
  const double us = static_cast<double>(ceil_div(units, kMultiprocessors)) *
                    (static_cast<double>(blocks) * tile.block_us + tile.tile_us);
  if (plan.parts == 1) return us + kLaunchUs;
  const int64_t bytes = p.batch * p.m * sum_pitch(p) * (2 * plan.parts + 1) * 4;
  return us + static_cast<double>(bytes) / kSumsRate + 2 * kLaunchUs;
}

// 4 bytes read, 6 written.
double parts_us(const MatrixLayout& layout) {
  return static_cast<double>(10 * plane_elements(layout)) / kMemoryRate;
}

double fma_us(const GemmProblem& p) {
  const double elements =
      static_cast<double>(p.batch) * static_cast<double>(p.m) * static_cast<double>(p.n);
  return elements * (2.0 * static_cast<double>(p.k) / kFmaRate + 4.0 / kMemoryRate) + kLaunchUs;
}

}  // namespace

bool split_takes(const GemmProblem& p) {
  constexpr int64_t kMostExtent = int64_t{1} << 30, kMostElements = int64_t{1} << 33;
  constexpr int64_t kMostMatrices = int64_t{1} << 24;
  if (std::max({p.m, p.n, p.k}) > kMostExtent || p.batch > kMostMatrices) return false;
  const int64_t widest = std::max(
      {plane_elements(layout_a(p)), plane_elements(layout_b(p)), p.batch * p.m * sum_pitch(p)});
  return widest < kMostElements;
}

std::optional<SplitPlan> choose_split(const GemmProblem& p) {
  if (!split_takes(p)) return std::nullopt;
  const double before_us = parts_us(layout_a(p)) + parts_us(layout_b(p)) + kLaunchUs;
  double best_us = fma_us(p) - before_us;
  std::optional<SplitPlan> best;
  for (int tile = 0; tile < kSplitTileCount; ++tile) {
    for (int parts = 1; parts <= 8 && parts <= ceil_div(p.k, kSplitDepth); ++parts) {
      const double us = product_us(p, {tile, parts});
      if (us >= best_us) continue;
      best_us = us;
      best = SplitPlan{tile, parts};
    }
  }
  return best;
}

int64_t split_scratch(const GemmProblem& p, const SplitPlan& plan) {
  const int64_t sums = p.batch * p.m * sum_pitch(p) * int64_t{sizeof(float)};
  return plane_bytes(layout_a(p)) + plane_bytes(layout_b(p)) +
         (plan.parts > 1 ? plan.parts * sums : 0);
}

void split_gemm(float* d, const float* a, const float* b, const GemmProblem& p, float alpha,
                float beta, const SplitPlan& plan, void* scratch, Stream stream) {
  QUERN_CHECK(reinterpret_cast<uintptr_t>(scratch) % kScratchAlignment == 0,
              "gemm: the scratch memory is not aligned to ", kScratchAlignment, " bytes");
  auto* const memory = static_cast<uint8_t*>(scratch);
  auto* const a_planes = reinterpret_cast<bfloat16*>(memory);
  auto* const b_planes = reinterpret_cast<bfloat16*>(memory + plane_bytes(layout_a(p)));
  split_planes({a_planes, a, layout_a(p)}, {b_planes, b, layout_b(p)}, stream);
  if (plan.parts == 1) {
    const SplitOutput out{d, p.ldd, p.stride_d, 0, alpha, beta};
    return split_product(out, a_planes, b_planes, p, plan, stream);
  }
  const int64_t pitch = sum_pitch(p), matrix = p.m * pitch;
  auto* const sums =
      reinterpret_cast<float*>(memory + plane_bytes(layout_a(p)) + plane_bytes(layout_b(p)));
  const SplitOutput out{sums, pitch, matrix, p.batch * matrix, 1.0f, 0.0f};
  split_product(out, a_planes, b_planes, p, plan, stream);
  sum_parts(d, sums, layout_d(p), pitch, plan.parts, alpha, beta, stream);
}

}  // namespace quern::kernels::cuda
