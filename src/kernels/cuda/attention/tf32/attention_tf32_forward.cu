// Flash attention of FP32 tensors, forward, by the tensor cores of compute capability 8.0 and later
// (attention_forward.cuh). Bound by mma: 4 Tq Tk D operations a head, half of that when causal,
// three times as many in split mode.
#include "kernels/cuda/attention/attention_forward.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.cuh"

namespace quern::kernels::cuda {

namespace {

template <bool kSplit, int kTile>
struct Tf32Products {
  static constexpr AttentionTile tile =
      kSplit ? kSplitForwardTiles[kTile] : kTf32ForwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  using Rows = FloatRows<kD>;

  template <int kM>
  static __device__ __forceinline__ auto hold(uint32_t rows) {
    return hold_queries<kSplit, kM>(RowsInShared<kSplit, kD>{rows + Rows::square_lane()});
  }
  template <int kM, int kN, class Queries>
  static __device__ __forceinline__ void multiply_keys(float (&scores)[kM][kN][4],
                                                       const Queries& queries, uint32_t keys) {
    multiply_transposed<kSplit, kD, kD / 8>(scores, queries, keys + Rows::column_lane());
  }
  template <int kM, int kN>
  static __device__ __forceinline__ void add_values(float (&out)[kM][kD / 8][4],
                                                    const float (&p)[kM][kN][4], uint32_t values) {
    multiply_add<kSplit, kD>(out, ScoresAsRows<kSplit, kM, kN>(p), values);
  }
  template <int kM>
  static __device__ __forceinline__ void store(float* o, int64_t stride, int rows, int D,
                                               float (&out)[kM][kD / 8][4],
                                               const float (&factor)[kM][2], uint32_t,
                                               bool vectors) {
    scale_rows(out, factor);
    store_rows<kSplit, kD>(o, stride, rows, D, out, vectors);
  }
};

template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_forward_kernel(const __grid_constant__ AttentionForward<float> x,
                                  const __grid_constant__ AttentionShape s, bool vectors) {
  extern __shared__ uint4 tf32_shared[];
  attend<Tf32Products<kSplit, kTile>>(x, s, vectors, shared_address(tf32_shared));
}

template <bool kSplit, size_t N>
void forward_with(const AttentionTile (&tiles)[N], const Tf32Limits& limits,
                  const AttentionForward<float>& x, const AttentionShape& s, Stream stream) {
  const int index =
      choose_tf32_tile(tiles, tf32_forward_shared_bytes, s.D, s.Tq, s.B * s.H, limits);
  with_tile(tiles, index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_forward_kernel<kSplit, tile>,
           one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)), dim3(kAttentionThreads),
           static_cast<size_t>(tf32_forward_shared_bytes(t)), stream, x, s, rows_aligned(x, s));
  });
}

}  // namespace

void tf32_attention_forward(const Tf32Limits& limits, const AttentionForward<float>& x,
                            const AttentionShape& s, Stream stream) {
  check_mma_attention(s);
  if (s.tf32) {
    forward_with<false>(kTf32ForwardTiles, limits, x, s, stream);
  } else {
    forward_with<true>(kSplitForwardTiles, limits, x, s, stream);
  }
}

}  // namespace quern::kernels::cuda
