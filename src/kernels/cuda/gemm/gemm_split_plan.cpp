#include "kernels/cuda/gemm/gemm_split.h"

#include <algorithm>

#include "kernels/cuda/gemm/gemm_split_layout.h"
#include "kernels/gemm.h"

namespace quern::kernels::cuda {

namespace {

// Microseconds on an H200, whose numbers are constants here: the choice must depend on the shape
// only. Rates are bytes and operations a microsecond; the sums of parts stay in L2.
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

GemmProblem describe(const Gemm& g) {
  GemmProblem p;
  p.m = g.m, p.n = g.n, p.k = g.k, p.batch = g.batch;
  p.lda = g.lda != 0 ? g.lda : (g.transpose_a ? g.m : g.k);
  p.ldb = g.ldb != 0 ? g.ldb : (g.transpose_b ? g.k : g.n);
  p.ldd = g.ldd != 0 ? g.ldd : g.n;
  p.stride_a = g.stride_a, p.stride_b = g.stride_b, p.stride_d = g.stride_d;
  p.transpose_a = g.transpose_a, p.transpose_b = g.transpose_b;
  p.math = static_cast<int64_t>(g.math) + (g.bias ? GemmProblem::kBiased : 0);
  return p;
}

std::optional<SplitPlan> plan_of_split(const Gemm& g, const GemmProblem& p, DType input,
                                       Stream stream) {
  if (!g.split || input != DType::f32 || g.math != MatmulMath::fp32 || g.k == 0) return {};
  return traits_of(stream).hopper_code ? choose_split(p) : std::nullopt;
}

int64_t split_scratch(const GemmProblem& p, const SplitPlan& plan) {
  const int64_t sums = p.batch * p.m * sum_pitch(p) * int64_t{sizeof(float)};
  return plane_bytes(layout_a(p)) + plane_bytes(layout_b(p)) +
         (plan.parts > 1 ? plan.parts * sums : 0);
}

int64_t gemm_scratch(const Gemm& g, DType input, Stream stream) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return 0;
  const GemmProblem p = describe(g);
  const std::optional<SplitPlan> plan = plan_of_split(g, p, input, stream);
  return plan ? split_scratch(p, *plan) : 0;
}

}  // namespace quern::kernels::cuda
