#include "kernels/cuda/plan.h"
#include "kernels/swiglu_product.h"

namespace quern::kernels::cuda {

namespace {

// Whether at most a sixth of the clusters' turns are idle, with tiles of `columns` of F.
bool fills_gpu(const SwigluSizes& s, int64_t columns, const DeviceTraits& gpu) {
  const int64_t units = ceil_div(s.rows, kProductCluster * kProductRows) * ceil_div(s.F, columns);
  const int64_t clusters = gpu.multiprocessors / kProductCluster;
  return ceil_div(units, clusters) * clusters * 5 <= units * 6;
}

}  // namespace

bool swiglu_product_runs(const SwigluSizes& s, Stream stream) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t tiles = ceil_div(s.rows, kProductRows) * ceil_div(s.F, kProductColumns / 2);
  return s.rows > 0 && s.C > 0 && s.F > 0 && s.C % 8 == 0 && s.F % 8 == 0 && s.rows < kMost &&
         s.C < kMost && s.F < kMost && tiles < kMost && traits_of(stream).hopper_code;
}

bool swiglu_product_forward_pays(const SwigluSizes& s, Stream stream) {
  // SwiGLU is a small part of a long product, and the library's product has the faster loop.
  constexpr int64_t kMostDepth = 2048;
  return s.C <= kMostDepth && swiglu_product_runs(s, stream) &&
         fills_gpu(s, kProductColumns / 2, traits_of(stream));
}

bool swiglu_product_backward_pays(const SwigluSizes& s, Stream stream) {
  return swiglu_product_runs(s, stream) && fills_gpu(s, kProductColumns, traits_of(stream));
}

}  // namespace quern::kernels::cuda
