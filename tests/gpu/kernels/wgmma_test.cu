// The primitives of the Hopper kernels one by one, in a block of one warpgroup: tiles by TMA, their
// swizzled layout, and wgmma with each kind of operand. Inputs are -1, 0 and 1, so that every sum
// is an integer that BF16 (below 256) or float holds, and results must be equal.
#include <random>

#include "gpu/compare.h"
#include "kernels/cuda/attention/hopper/attention_hopper.cuh"

namespace quern::kernels::cuda {
namespace {

using test::DeviceBuffer;

enum class Step { kLoad, kStore, kScores, kOutput, kTransposed };

struct Maps {
  CUtensorMap rows, keys, result;
};

// x (64, D) and y (keys, D) are tiles of one tensor. out:
//   kLoad        y
//   kStore       x, through the map `result`
//   kScores      x y^T, both operands K-major
//   kOutput      (x y^T) y, A in registers, B MN-major
//   kTransposed  y[:, :64]^T y, both operands MN-major
template <int kD, int kKeys, Step kStep, bool kPadded>
__global__ void __launch_bounds__(kWarpgroupSize, 1)
    step_kernel(float* out, const __grid_constant__ Maps maps, int x0, int y0, int head,
                int batch) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using X = SwizzledTile<kWarpgroupRows, kD>;
  using Y = SwizzledTile<kKeys, kD>;
  extern __shared__ uint8_t memory[];
  __shared__ MBarrier full;
  uint8_t* const x = align_tiles(memory);
  uint8_t* const y = x + X::kBytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    full.init(1);
    barriers_ready();
    full.arrive_expecting(X::kBytes + Y::kBytes);
    load_tile_async<X>(x, maps.rows, full, x0, head, batch, kPadded);
    load_tile_async<Y>(y, maps.keys, full, y0, head, batch, kPadded);
  }
  __syncthreads();
  full.wait(0);

  const FragmentPlace place(thread);
  const auto write = [&](const auto& d) {
    constexpr int kN = 2 * static_cast<int>(sizeof(d) / sizeof(float));
#pragma unroll
    for (int c = 0; c < kN / 2; ++c) {
      out[(place.row + c / 2 % 2 * 8) * kN + place.column + c / 4 * 8 + c % 2] = d[c];
    }
  };
  if constexpr (kStep == Step::kLoad) {
    for (int e = thread; e < kKeys * kD; e += kWarpgroupSize) {
      out[e] = to_float(*reinterpret_cast<const bfloat16*>(y + Y::offset(e / kD, e % kD)));
    }
  } else if constexpr (kStep == Step::kStore) {
    if (thread == 0) {
      store_tile_async<X>(maps.result, x, x0, head, batch, kPadded);
      commit_stores();
      wait_stores_read<0>();
    }
  } else if constexpr (kStep == Step::kTransposed) {
    float d[kD / 2];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / kWgmmaDepth; ++i) {
      wgmma<Major::kMN, Major::kMN>(d, Y::mn_major(y) + Y::mn_step(i),
                                    Y::mn_major(y) + Y::mn_step(i), i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);
    write(d);
  } else {
    float s[kKeys / 2];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / kWgmmaDepth; ++i) {
      wgmma<Major::kK, Major::kK>(s, X::k_major(x) + X::k_step(i), Y::k_major(y) + Y::k_step(i),
                                  i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
    if constexpr (kStep == Step::kScores) {
      write(s);
    } else {
      uint32_t p[kKeys / 16][4];
      float d[kD / 2];
      pack_operand(p, s);
      settle(p);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kKeys / kWgmmaDepth; ++i) {
        wgmma<Major::kMN>(d, p[i], Y::mn_major(y) + Y::mn_step(i), i > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      settle(d);
      settle(p);
      write(d);
    }
  }
#endif
}

class WgmmaGpu : public test::GpuTest {};

// One head of a (2, T, 3, kWidth) tensor with 8 elements between tokens, and tiles that end beyond
// T and, where kD is larger, beyond the head.
template <int kD, int kKeys, int kWidth = kD>
struct Steps {
  static constexpr int kT = 150, kHeads = 3, kHead = 2, kBatch = 1;
  static constexpr int kRow = kHeads * kWidth + 8;
  static constexpr int kX0 = 100, kY0 = 70;
  static constexpr int64_t kStrides[3] = {int64_t{kT} * kRow, kRow, kWidth};
  static constexpr int64_t kBytes =
      kTileAlignment + SwizzledTile<kWarpgroupRows, kD>::kBytes + SwizzledTile<kKeys, kD>::kBytes;

  std::vector<bfloat16> tensor;
  DeviceBuffer<bfloat16> device, stored{2 * kT * kRow};

  Steps() : tensor(random_digits()), device(tensor) {}

  static std::vector<bfloat16> random_digits() {
    std::mt19937 engine(kD + kKeys);
    std::vector<bfloat16> values(2 * kT * kRow);
    for (bfloat16& x : values) x = bfloat16(static_cast<float>(static_cast<int>(engine() % 3) - 1));
    return values;
  }
  static int64_t index(int row, int d) {
    return kBatch * kStrides[0] + row * kStrides[1] + kHead * kStrides[2] + d;
  }
  float element(int row, int d) const {
    if (row >= kT || d >= kWidth) return 0.0f;
    return static_cast<float>(tensor[static_cast<size_t>(index(row, d))]);
  }
  // (rows, columns) of sum over `depth` of a(row, i) b(i, column)
  template <class A, class B>
  static std::vector<float> product(int rows, int columns, int depth, A a, B b) {
    std::vector<float> out(static_cast<size_t>(rows) * columns, 0.0f);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        for (int i = 0; i < depth; ++i)
          out[static_cast<size_t>(r) * columns + c] += a(r, i) * b(i, c);
      }
    }
    return out;
  }

  template <Step kStep>
  std::vector<float> run(int64_t outputs) {
    DeviceBuffer<float> out(outputs);
    const auto map = [](const bfloat16* x, int rows) {
      return make_tile_map(x, kStrides, 2, kT, kHeads, kWidth, rows, kD);
    };
    const Maps maps = {map(device.get(), kWarpgroupRows), map(device.get(), kKeys),
                       map(stored.get(), kWarpgroupRows)};
    launch(step_kernel<kD, kKeys, kStep, (kWidth < kD)>, dim3(1), dim3(kWarpgroupSize),
           static_cast<size_t>(kBytes), Stream{}, out.get(), maps, kX0, kY0, kHead, kBatch);
    const auto result = out.download();
    out.expect_guards_intact();
    return result;
  }

  void check() {
    SCOPED_TRACE(::testing::Message() << "D " << kD << ", keys " << kKeys << ", width " << kWidth);
    const auto x = [&](int r, int d) { return element(kX0 + r, d); };
    const auto y = [&](int r, int d) { return element(kY0 + r, d); };
    const auto y_transposed = [&](int d, int r) { return y(r, d); };
    const auto same = [](int r, int i) { return r == i ? 1.0f : 0.0f; };
    const auto scores = product(kWarpgroupRows, kKeys, kD, x, y_transposed);
    const auto p = [&](int r, int j) { return scores[static_cast<size_t>(r) * kKeys + j]; };
    {
      SCOPED_TRACE("TMA load and swizzled layout");
      test::expect_close(run<Step::kLoad>(kKeys * kD), product(kKeys, kD, kKeys, same, y), 0.0,
                         0.0);
    }
    {
      SCOPED_TRACE("TMA store");
      run<Step::kStore>(1);
      check_stored();
    }
    {
      SCOPED_TRACE("K-major A and B");
      test::expect_close(run<Step::kScores>(kWarpgroupRows * kKeys), scores, 0.0, 0.0);
    }
    {
      SCOPED_TRACE("A in registers, MN-major B");
      test::expect_close(run<Step::kOutput>(kWarpgroupRows * kD),
                         product(kWarpgroupRows, kD, kKeys, p, y), 0.0, 0.0);
    }
    {
      SCOPED_TRACE("MN-major A and B");
      test::expect_close(run<Step::kTransposed>(kWarpgroupRows * kD),
                         product(kWarpgroupRows, kD, kKeys, y_transposed, y), 0.0, 0.0);
    }
  }

  // The tile's elements within its head, batch and T were written, and nothing else.
  void check_stored() {
    const auto image = stored.download();
    stored.expect_guards_intact();
    std::vector<bool> written(image.size(), false);
    for (int row = kX0; row < kT; ++row) {
      for (int d = 0; d < kWidth; ++d) {
        const auto i = static_cast<size_t>(index(row, d));
        ASSERT_EQ(image[i].bits, tensor[i].bits) << "row " << row << ", column " << d;
        written[i] = true;
      }
    }
    for (size_t i = 0; i < image.size(); ++i) {
      if (!written[i]) ASSERT_EQ(image[i].bits, 0xFFFF) << "element " << i;
    }
  }
};

TEST_F(WgmmaGpu, EveryLayout) {
  const auto kernel = reinterpret_cast<const void*>(step_kernel<64, 128, Step::kScores, false>);
  if (!hopper_kernel_runs(kernel, Steps<64, 128>::kBytes)) GTEST_SKIP() << "not sm_90a";
  Steps<64, 64>().check();
  Steps<64, 128>().check();
  Steps<80, 80>().check();
  Steps<80, 96>().check();
  Steps<96, 96>().check();
  Steps<128, 128>().check();
  Steps<128, 160>().check();
  Steps<128, 176>().check();
  Steps<64, 64, 40>().check();
  Steps<80, 96, 72>().check();
  Steps<96, 96, 88>().check();
  Steps<128, 128, 112>().check();
}

}  // namespace
}  // namespace quern::kernels::cuda
