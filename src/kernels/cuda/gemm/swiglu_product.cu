// SwiGLU, y (rows, F), behind the product that makes its input, and its backward behind the product
// that makes the gradient of y (product_tiles.cuh). Bound by the tensor cores where C is large.
// Below some 1,000 columns the backward is bound by memory: 4 F elements a row beside the
// product's, 5 F where it also gives y.
#include "kernels/swiglu_product.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/cuda/gemm/swiglu_product.cuh"

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
      RingPlace<1> output;
      work.schedule.for_each([&](const auto& item) {
        work.finish(shared.output(), item, thread, [&] { barriers.output.wait_full(output); });
        __syncwarp();
        barriers.output.release(0, thread);
        output.advance();
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

CUtensorMap panels(const bfloat16* x, int64_t rows, int64_t columns, int box_rows) {
  return make_panel_map({x, 1, rows, columns, columns}, box_rows, kPanelColumns);
}

}  // namespace

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
