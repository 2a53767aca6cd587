// SwiGLU behind the product that makes its input, and its backward behind the product that makes
// the gradient of its output (product_tiles.cuh). Bound by the tensor cores where C is large, and
// by memory below some 1,000 columns in the backward: 4 F elements a row beside the product's, 5 F
// where it gives SwiGLU's output too.
#include "kernels/swiglu_product.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/cuda/swiglu_product.cuh"

namespace quern::kernels::cuda {

namespace {

template <class Work>
__global__ void __launch_bounds__(kProductThreads, 1)
    hopper_swiglu_product_kernel(const __grid_constant__ Work work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = typename Work::Tiles;
  extern __shared__ uint8_t product_tiles[];
  __shared__ ProductBarriers barriers;
  const Tiles shared{align_tiles(product_tiles)};
  if (threadIdx.x == 0) barriers.init();
  cluster_barrier();

  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroupSize, 0);
  const int thread = static_cast<int>(threadIdx.x) - kMultipliers * kWarpgroupSize;
  if (warpgroup < kMultipliers) {
    take_registers<kMultiplierRegisters>();
    Multiplier<Work::kMajor> multiplier{shared, barriers, warpgroup,
                                        static_cast<int>(threadIdx.x) % kWarpgroupSize};
    multiplier.run(work.schedule);
  } else {
    give_registers<kOtherRegisters>();
    if (thread < kFinishThreads) {
      uint32_t turn = 0;
      work.schedule.for_each([&](const auto& item) {
        work.finish(shared.output(), item, barriers.made, turn, thread);
        __syncwarp();
        if (thread % kWarpSize == 0) barriers.taken.arrive();
        turn ^= 1;
      });
    } else if (thread == kFinishThreads) {
      produce(shared, barriers, work.schedule, work.a,
              [&](uint8_t* tile, MBarrier& full, const auto& item, int k) {
                work.load_b(tile, full, item, k);
              });
    }
  }
  __syncwarp();
  cluster_barrier();  // the other block may still write here, and arrive
#endif
}

// Tiles of `columns` of F.
ProductSchedule schedule_of(const SwigluSizes& s, int64_t columns) {
  ProductSchedule schedule;
  schedule.pairs = static_cast<int>(ceil_div(s.rows, kProductCluster * kProductRows));
  schedule.columns = static_cast<int>(ceil_div(s.F, columns));
  schedule.blocks = static_cast<int>(ceil_div(s.C, kProductDepth));
  return schedule;
}

int64_t units_of(const ProductSchedule& schedule) {
  return int64_t{schedule.pairs} * schedule.columns;
}

int64_t most_clusters() {
  return device_traits().multiprocessors / kProductCluster;
}

// Whether at most a sixth of the clusters' turns are left over.
bool fills_gpu(const ProductSchedule& schedule) {
  const int64_t units = units_of(schedule), clusters = most_clusters();
  return ceil_div(units, clusters) * clusters * 5 <= units * 6;
}

template <class Work>
void start(Work& work, const SwigluSizes& s, int64_t columns, Stream stream) {
  work.schedule = schedule_of(s, columns);
  work.rows = static_cast<int>(s.rows), work.F = static_cast<int>(s.F);
  LaunchOptions options;
  options.cluster = kProductCluster;
  const int64_t clusters = std::min(most_clusters(), units_of(work.schedule));
  launch(options, hopper_swiglu_product_kernel<Work>, one_block_each(clusters * kProductCluster),
         dim3(kProductThreads), static_cast<size_t>(Work::Tiles::kSharedBytes), stream, work);
}

template <class Work>
bool kernel_runs() {
  static const bool runs = hopper_kernel_runs(
      reinterpret_cast<const void*>(hopper_swiglu_product_kernel<Work>), Work::Tiles::kSharedBytes);
  return runs;
}

CUtensorMap panels(const bfloat16* x, int64_t rows, int64_t columns, int box_rows) {
  return make_panel_map({x, 1, rows, columns, columns}, box_rows, kPanelColumns);
}

}  // namespace

bool swiglu_product_runs(const SwigluSizes& s, Stream) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t tiles = ceil_div(s.rows, kProductRows) * ceil_div(s.F, SwigluForward::kHalf);
  return s.rows > 0 && s.C > 0 && s.F > 0 && s.C % 8 == 0 && s.F % 8 == 0 && s.rows < kMost &&
         s.C < kMost && s.F < kMost && tiles < kMost && kernel_runs<SwigluForward>() &&
         kernel_runs<SwigluBackward<true>>() && kernel_runs<SwigluBackward<false>>();
}

bool swiglu_product_forward_pays(const SwigluSizes& s, Stream stream) {
  // Of a long product SwiGLU is a small part, and the library's has the faster loop.
  constexpr int64_t kMostDepth = 2048;
  return s.C <= kMostDepth && swiglu_product_runs(s, stream) &&
         fills_gpu(schedule_of(s, SwigluForward::kHalf));
}

bool swiglu_product_backward_pays(const SwigluSizes& s, Stream stream) {
  return swiglu_product_runs(s, stream) && fills_gpu(schedule_of(s, kProductColumns));
}

void swiglu_product_forward(bfloat16* gate_up, bfloat16* y, const bfloat16* x, const bfloat16* w,
                            const SwigluSizes& s, Stream stream) {
  QUERN_CHECK(aligned16({gate_up, y, x, w}),
              "swiglu_product: an operand is not aligned to 16 bytes");
  SwigluForward work{};
  work.a = panels(x, s.rows, s.C, kProductRows);
  work.b = panels(w, 2 * s.F, s.C, SwigluForward::kHalf);
  work.gate_up = gate_up, work.y = y;
  start(work, s, SwigluForward::kHalf, stream);
}

void swiglu_product_backward(bfloat16* d_gate_up, bfloat16* y, const bfloat16* gate_up,
                             const bfloat16* dz, const bfloat16* w, const SwigluSizes& s,
                             Stream stream) {
  QUERN_CHECK(aligned16({d_gate_up, y, gate_up, dz, w}),
              "swiglu_product: an operand is not aligned to 16 bytes");
  const auto run = [&]<bool kStoresY>(SwigluBackward<kStoresY> work) {
    work.a = panels(dz, s.rows, s.C, kProductRows);
    work.b = panels(w, s.C, s.F, work.kBoxRows);
    work.d_gate_up = d_gate_up, work.y = y, work.gate_up = gate_up;
    start(work, s, kProductColumns, stream);
  };
  if (y) {
    run(SwigluBackward<true>{});
  } else {
    run(SwigluBackward<false>{});
  }
}

}  // namespace quern::kernels::cuda
