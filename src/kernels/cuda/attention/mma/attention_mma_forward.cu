// Flash attention of BF16 tensors, forward, by the tensor cores of compute capability 8.0 and later
// (attention_forward.cuh). Bound by mma: 4 Tq Tk D operations a head, half of that when causal.
#include "kernels/cuda/attention/attention_forward.cuh"
#include "kernels/cuda/attention/mma/attention_mma.cuh"

namespace quern::kernels::cuda {

namespace {

template <int kTile>
struct MmaProducts {
  static constexpr AttentionTile tile = kMmaForwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  using Rows = SharedRows<kD>;

  // Q of the warp's rows, in registers where they suffice. All threads call it.
  template <int kM>
  static __device__ __forceinline__ auto hold(uint32_t rows) {
    const RowsInShared<kD> shared{rows + Rows::square_lane()};
    if constexpr (kD <= kMmaQueryWidth) {
      wait_for_copies();
      __syncthreads();
      RowsInRegisters<kM, kD> held;
      held.fill(shared);
      return held;
    } else {
      return shared;
    }
  }
  template <int kM, int kN, class Queries>
  static __device__ __forceinline__ void multiply_keys(float (&scores)[kM][kN][4],
                                                       const Queries& queries, uint32_t keys) {
    multiply_transposed<kD>(scores, queries, keys + Rows::column_lane());
  }
  template <int kM, int kN>
  static __device__ __forceinline__ void add_values(float (&out)[kM][kD / 8][4],
                                                    const float (&p)[kM][kN][4], uint32_t values) {
    multiply_add<kD, kD, kN / 2>(out, ScoresAsRows{p}, values + Rows::square_lane());
  }
  template <int kM>
  static __device__ __forceinline__ void store(bfloat16* o, int64_t stride, int rows, int D,
                                               const float (&out)[kM][kD / 8][4],
                                               const float (&factor)[kM][2], uint32_t tile,
                                               bool vectors) {
    store_rows<kD, kD>(o, stride, rows, 0, D, out, factor, tile, vectors);
  }
};

template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads, mma_forward_blocks(kMmaForwardTiles[kTile]))
    mma_attention_forward_kernel(const __grid_constant__ AttentionForward<bfloat16> x,
                                 const __grid_constant__ AttentionShape s, bool vectors) {
  extern __shared__ uint4 mma_shared[];
  attend<MmaProducts<kTile>>(x, s, vectors, shared_address(mma_shared));
}

}  // namespace

void mma_attention_forward(int64_t shared_bytes, const AttentionForward<bfloat16>& x,
                           const AttentionShape& s, Stream stream) {
  check_mma_attention(s);
  const int index = choose_tile(kMmaForwardTiles, mma_forward_shared_bytes, s.D, shared_bytes);
  with_tile(kMmaForwardTiles, index, [&](auto tile) {
    const AttentionTile& t = kMmaForwardTiles[index];
    launch(mma_attention_forward_kernel<tile>, one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)),
           dim3(kAttentionThreads), static_cast<size_t>(mma_forward_shared_bytes(t)), stream, x, s,
           rows_aligned(x, s));
  });
}

}  // namespace quern::kernels::cuda
