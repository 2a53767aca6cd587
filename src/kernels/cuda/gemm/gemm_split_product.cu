// The product D (m, n) of operands split into three BF16 parts (see gemm_split.h), on Hopper.
// Persistent blocks: a producer copies planes of A and B by TMA into a ring in shared memory, two
// consumer warpgroups of 64 rows multiply by wgmma. Bound by the tensor cores, 12 m n k operations,
// with shared memory and L2 close behind.
//
// The tensor cores truncate their sums where FP32 rounds, which would pull every sum towards zero.
// So each block of K starts from zero and adds its small products before its large ones. Ordinary
// additions then add it to FP32 registers.
#include "kernels/cuda/gemm/gemm_split_product.cuh"

#include "kernels/cuda/gemm/gemm_split_passes.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

struct SplitProduct {
  CUtensorMap a, b;
  SplitSchedule schedule;
  SplitOutput out;
  int m, n;
  bool a_repeats, b_repeats;  // one matrix for all of the batch
  bool vectors;               // D takes 16-byte stores
};

// Run by one thread: copies each item's blocks of K.
template <class Tiles>
__device__ __forceinline__ void produce(const Tiles& shared, typename Tiles::Barriers& barriers,
                                        const SplitProduct& product) {
  prefetch_map(product.a);
  prefetch_map(product.b);
  RingPlace<Tiles::tile.stages> ring;
  for (int unit = static_cast<int>(blockIdx.x); unit < product.schedule.units;
       unit += static_cast<int>(gridDim.x)) {
    const SplitItem item = product.schedule.item(unit, Tiles::tile.columns);
    const int a_matrix = product.a_repeats ? 0 : item.matrix;
    const int b_matrix = product.b_repeats ? 0 : item.matrix;
    for (int block = item.first_block; block < item.end_block; ++block) {
      barriers.ring.wait_empty(ring);
      MBarrier& full = barriers.ring.expect(ring, Tiles::kStageBytes);
      Tiles::A::load(shared.a(ring.stage), product.a, full, item.m0, block * kSplitDepth, a_matrix);
      Tiles::B::load(shared.b(ring.stage), product.b, full, item.n0, block * kSplitDepth, b_matrix);
      ring.advance();
    }
  }
}

// One consumer warpgroup: 64 rows of a tile of D.
template <class Tiles, Major kA, Major kB>
struct SplitConsumer {
  static constexpr int kRegisters = Tiles::tile.columns / 2;
  const Tiles& shared;
  typename Tiles::Barriers& barriers;
  const SplitProduct& product;
  int warpgroup, thread;  // of the consumers; of the warpgroup
  FragmentPlace place{thread};
  // One warpgroup's additions run during the other's products.
  Turns<kSplitConsumers, true> turns{warpgroup};
  RingPlace<Tiles::tile.stages> ring;

  // The six products of parts, small ones first.
  __device__ __forceinline__ void multiply(float (&d)[kRegisters]) const {
    constexpr int kHi = 0, kMid = 1, kLo = 2;
    constexpr int kPairs[][2] = {{kLo, kHi},  {kHi, kLo},  {kMid, kMid},
                                 {kMid, kHi}, {kHi, kMid}, {kHi, kHi}};
    const uint64_t a = Tiles::A::descriptor(shared.a(ring.stage), warpgroup * kWarpgroupRows);
    const uint64_t b = Tiles::B::descriptor(shared.b(ring.stage), 0);
    wgmma_fence();
#pragma unroll
    for (int pair = 0; pair < 6; ++pair) {
#pragma unroll
      for (int i = 0; i < kSplitDepth / kWgmmaDepth; ++i) {
        wgmma<kA, kB>(d, a + Tiles::A::place(kPairs[pair][0], i),
                      b + Tiles::B::place(kPairs[pair][1], i), pair + i > 0);
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void run() {
    float of_block[kRegisters];
    turns.begin();
    for (int unit = static_cast<int>(blockIdx.x); unit < product.schedule.units;
         unit += static_cast<int>(gridDim.x)) {
      const SplitItem item = product.schedule.item(unit, Tiles::tile.columns);
      float sum[kRegisters] = {};
#pragma unroll 1
      for (int block = item.first_block; block < item.end_block; ++block) {
        barriers.ring.wait_full(ring);
        turns.wait();
        multiply(of_block);
        turns.pass();
        wgmma_wait<0>();
        settle(of_block);
        barriers.ring.release(ring.stage, thread);
        ring.advance();
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum[i] += of_block[i];
      }
      store(sum, item);
      __syncwarp();  // the next products need whole warps
    }
    turns.end();
  }

  __device__ __forceinline__ void store(float (&sum)[kRegisters], const SplitItem& item) const {
    const SplitOutput& out = product.out;
    const int row0 = item.m0 + warpgroup * kWarpgroupRows + place.row;
    const int column0 = item.n0 + place.column;
    float* const d = out.d + item.matrix * out.matrix_stride + item.part * out.part_stride +
                     row0 * out.ld + column0;
    const int rows = product.m - row0, columns = product.n - column0;  // from d on
    scale(sum, d, rows, columns);
    if (product.vectors && item.n0 + Tiles::tile.columns <= product.n) {
#pragma unroll
      for (int i = 0; i < kRegisters; i += i % 4 == 0 ? 2 : 6) {
        store_groups(d + fragment_row(i) * out.ld + fragment_column(i), &sum[i], &sum[i + 4],
                     fragment_row(i) < rows);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) {
        if (fragment_row(i) < rows && fragment_column(i) < columns)
          d[fragment_row(i) * out.ld + fragment_column(i)] = sum[i];
      }
    }
  }
  // sum = alpha sum + beta D. All of D is read before any of it is written: the loads overlap.
  __device__ __forceinline__ void scale(float (&sum)[kRegisters], const float* d, int rows,
                                        int columns) const {
    const float alpha = product.out.alpha, beta = product.out.beta;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sum[i] *= alpha;
    if (beta == 0.0f) return;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      if (fragment_row(i) < rows && fragment_column(i) < columns) {
        sum[i] = fmaf(beta, d[fragment_row(i) * product.out.ld + fragment_column(i)], sum[i]);
      }
    }
  }
  // Stores a thread's two columns of a group of 8, at d, and of the next group. Neighbours exchange
  // two, so that the even one has four columns of the first group, the odd one four of the second.
  __device__ __forceinline__ void store_groups(float* d, const float* first, const float* second,
                                               bool exists) const {
    const bool odd = thread % 2 != 0;
    const float x = __shfl_xor_sync(~0u, odd ? first[0] : second[0], 1);
    const float y = __shfl_xor_sync(~0u, odd ? first[1] : second[1], 1);
    const float4 four =
        odd ? make_float4(x, y, second[0], second[1]) : make_float4(first[0], first[1], x, y);
    if (exists) *reinterpret_cast<float4*>(d + (odd ? 8 - 2 : 0)) = four;
  }
};

template <int kTile, Major kA, Major kB>
__global__ void __launch_bounds__(hopper_threads(kSplitConsumers), 1)
    split_product_kernel(const __grid_constant__ SplitProduct product) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = SplitTiles<kTile, kA, kB>;
  extern __shared__ uint8_t split_tiles[];
  __shared__ typename Tiles::Barriers barriers;
  const Tiles shared{align_tiles(split_tiles)};
  const int thread = static_cast<int>(threadIdx.x), warpgroup = start_block(barriers);
  if (warpgroup == 0) {
    begin_producing<kSplitConsumers>();
    if (thread == 0) produce(shared, barriers, product);
  } else {
    begin_consuming<kSplitConsumers>();
    SplitConsumer<Tiles, kA, kB> consumer{shared, barriers, product, warpgroup - 1,
                                          thread % kWarpgroupSize};
    consumer.run();
  }
#endif
}

// The tensor map of one operand's planes.
template <class Operand>
CUtensorMap plane_map(const bfloat16* planes, int64_t extent, int64_t k, int64_t matrices) {
  const int64_t rows = Operand::kByK ? extent : k, columns = Operand::kByK ? k : extent;
  return make_panel_map({planes, matrices * kSplitPlanes, rows, columns, plane_pitch(columns)},
                        Operand::kPanelRows, Operand::Tile::kSpan);
}

template <int kTile, Major kA, Major kB>
void start(SplitProduct& product, const bfloat16* a, const bfloat16* b, const GemmProblem& p,
           Stream stream) {
  using Tiles = SplitTiles<kTile, kA, kB>;
  product.a = plane_map<typename Tiles::A>(a, p.m, p.k, product.a_repeats ? 1 : p.batch);
  product.b = plane_map<typename Tiles::B>(b, p.n, p.k, product.b_repeats ? 1 : p.batch);
  launch_persistent(split_product_kernel<kTile, kA, kB>, product.schedule.units, kSplitConsumers,
                    Tiles::kSharedBytes, stream, product);
}

template <int kTile>
bool tile_runs() {
  const auto kernel = split_product_kernel<kTile, Major::kK, Major::kK>;
  return hopper_kernel_runs(reinterpret_cast<const void*>(kernel),
                            SplitTiles<kTile, Major::kK, Major::kK>::kSharedBytes);
}

// Calls body(integral_constant<int, tile>).
template <class Body>
void with_split_tile(int tile, Body body) {
  static_assert(kSplitTileCount == 2);
  switch (tile) {
    case 0: return body(std::integral_constant<int, 0>{});
    case 1: return body(std::integral_constant<int, 1>{});
    default: fail(cat("gemm: split tile ", tile, ", expected 0 or 1"));
  }
}

SplitSchedule schedule_of(const GemmProblem& p, const SplitPlan& plan) {
  SplitSchedule s{};
  s.tiles_m = static_cast<int>(ceil_div(p.m, kSplitTileRows));
  s.tiles_n = static_cast<int>(ceil_div(p.n, kSplitTiles[plan.tile].columns));
  s.blocks = static_cast<int>(ceil_div(p.k, kSplitDepth));
  s.parts = plan.parts;
  s.units = s.tiles_m * s.tiles_n * s.parts * static_cast<int>(p.batch);
  return s;
}

}  // namespace

bool split_runs() {
  static const bool runs = [] {
    bool all = true;
    for (int i = 0; i < kSplitTileCount; ++i) {
      with_split_tile(i, [&](auto tile) { all = all && tile_runs<tile>(); });
    }
    return all;
  }();
  return runs;
}

DeviceTraits query_device_traits() {
  DeviceTraits traits = device_traits();
  traits.hopper_code = split_runs();
  return traits;
}

void split_product(const SplitOutput& out, const bfloat16* a, const bfloat16* b,
                   const GemmProblem& p, const SplitPlan& plan, Stream stream) {
  SplitProduct product{};
  product.schedule = schedule_of(p, plan);
  product.out = out;
  product.m = static_cast<int>(p.m), product.n = static_cast<int>(p.n);
  product.a_repeats = p.stride_a == 0, product.b_repeats = p.stride_b == 0;
  product.vectors = aligned16({out.d}) && out.ld % 4 == 0 && out.matrix_stride % 4 == 0 &&
                    out.part_stride % 4 == 0;
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  with_split_tile(plan.tile, [&](auto tile) {
    if (p.transpose_a == 0 && p.transpose_b == 0) {
      start<tile, kK, kMN>(product, a, b, p, stream);
    } else if (p.transpose_a == 0) {
      start<tile, kK, kK>(product, a, b, p, stream);
    } else if (p.transpose_b == 0) {
      start<tile, kMN, kMN>(product, a, b, p, stream);
    } else {
      start<tile, kMN, kK>(product, a, b, p, stream);
    }
  });
}

void split_gemm(float* d, const float* a, const float* b, const GemmProblem& p, float alpha,
                float beta, const SplitPlan& plan, void* scratch, Stream stream) {
  QUERN_CHECK(reinterpret_cast<uintptr_t>(scratch) % kSplitAlignment == 0,
              "gemm: the scratch memory is not aligned to ", kSplitAlignment, " bytes");
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
