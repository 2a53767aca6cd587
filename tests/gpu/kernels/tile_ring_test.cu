// The primitives by which the warps of a block wait for each other, in a block of one producer warp
// and consumer warps: a ring of tiles that turns many times, and named barriers.
#include "gpu/compare.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/named_barrier.cuh"
#include "kernels/cuda/primitives/tile_ring.cuh"

namespace quern::kernels::cuda {
namespace {

using test::DeviceBuffer;

constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpSize;

// out[item] = sum over the consumers' lanes of first tile + 1000 second tile. The producer fills
// them with item and 2 item. The two tiles of a stage arrive one after the other.
template <int kStages>
__global__ void __launch_bounds__(kThreads) ring_kernel(int* out, int items) {
#if __CUDA_ARCH__ >= 900
  using Ring = TileRing<kStages, 2>;
  __shared__ Ring ring;
  __shared__ int tiles[2][kStages][kWarpSize];
  if (threadIdx.x == 0) {
    ring.init({1, 1}, kConsumers);
    barriers_ready();
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  typename Ring::Place at;
  for (int item = 0; item < items; ++item, at.advance()) {
    if (threadIdx.x < kWarpSize) {
      ring.wait_empty(at);
      for (int tile = 0; tile < 2; ++tile) {
        tiles[tile][at.stage][lane] = (tile + 1) * item;
        __syncwarp();
        if (lane == 0) ring.full[tile][at.stage].arrive();
      }
    } else {
      ring.wait_full(at, 0);
      int sum = tiles[0][at.stage][lane];
      ring.wait_full(at, 1);
      sum += 1000 * tiles[1][at.stage][lane];
      __syncwarp();
      ring.release(at.stage, static_cast<int>(threadIdx.x));
      atomicAdd(out + item, sum);
    }
  }
#endif
}

// Two pairs of warps, each with a barrier of its own name: the first warp of a pair only arrives
// behind its write, the second one waits and reads. The second pair skips the first one's barrier.
__global__ void __launch_bounds__(4 * kWarpSize) barriers_kernel(int* out) {
  using Pairs = NamedBarriers<2, 2 * kWarpSize>;
  using All = NamedBarriers<1, 4 * kWarpSize, Pairs>;
  static_assert(Pairs::kFirst == 1 && All::kFirst == 3 && All::kEnd == 4);
  __shared__ int written[2][kWarpSize];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, pair = warp / 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (warp % 2 == 0) {
    written[pair][lane] = 10 * pair + lane;
    Pairs::arrive(pair);
  } else {
    Pairs::sync(pair);
    out[pair * kWarpSize + lane] = written[pair][kWarpSize - 1 - lane];
  }
  All::sync();
  if (warp == 3) out[2 * kWarpSize + lane] = written[0][lane];
}

class TileRingGpu : public test::GpuTest {};

template <int kStages>
void check_ring() {
  constexpr int kItems = 7 * kStages + 1;
  DeviceBuffer<int> out(std::vector<int>(kItems, 0));
  launch(ring_kernel<kStages>, dim3(1), dim3(kThreads), 0, Stream{}, out.get(), kItems);
  const auto sums = out.download();
  if (sums[1] == 0) GTEST_SKIP() << "needs compute capability 9.0";
  for (int i = 0; i < kItems; ++i) {
    EXPECT_EQ(sums[static_cast<size_t>(i)], kConsumers * kWarpSize * (i + 2000 * i))
        << kStages << " stages, item " << i;
  }
}

TEST_F(TileRingGpu, OneStage) {
  check_ring<1>();
}
TEST_F(TileRingGpu, ThreeStages) {
  check_ring<3>();
}

TEST_F(TileRingGpu, BarriersByName) {
  DeviceBuffer<int> out(3 * kWarpSize);
  launch(barriers_kernel, dim3(1), dim3(4 * kWarpSize), 0, Stream{}, out.get());
  const auto values = out.download();
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto i = static_cast<size_t>(lane);
    EXPECT_EQ(values[i], kWarpSize - 1 - lane);
    EXPECT_EQ(values[kWarpSize + i], 10 + kWarpSize - 1 - lane);
    EXPECT_EQ(values[2 * kWarpSize + i], lane);
  }
}

}  // namespace
}  // namespace quern::kernels::cuda
