// Puts the rows of x of decode_token.cu's products into shared memory: received as words, and
// normed where the product follows a norm. Every sum has the order of decode_linear.cu.
#pragma once

#include "kernels/cuda/decode/decode_token_plan.cuh"

namespace quern::kernels::cuda {

// Source of the residual stream's rows: words or, if null, rows of the embedding.
struct StreamSource {
  const bfloat16* embedding;
  const int32_t* tokens;
  const Word* words;
  uint32_t tag;

  // Loads this thread's groups of 8 elements of row m; group k is number threadIdx.x + k
  // kTokenThreads. Zeros past the row's end.
  template <class TX, int kHeld>
  __device__ __forceinline__ void load(uint32_t (&raw)[kHeld][8 / kWordElements<TX>], int m,
                                       const TokenLinear& linear) const {
    constexpr int kWords = 8 / kWordElements<TX>;
    const Word* from[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kTokenThreads;
      from[k] = nullptr;
      if (k * kTokenThreads >= linear.chunks) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) raw[k][w] = 0;
      if (i >= linear.chunks) continue;
      if (words != nullptr) {
        from[k] = words + (m * linear.chunks + i) * kWords;
        continue;
      }
      const bfloat16* const x = embedding + int64_t{tokens[m]} * linear.in + i * 8;
      const uint4 chunk = __ldg(reinterpret_cast<const uint4*>(x));
      const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        raw[k][w] = kWords == 4  ? pairs[w % 4]
                    : w % 2 == 0 ? pairs[w / 2] << 16
                                 : pairs[w / 2] & 0xffff0000u;
      }
    }
    if (words != nullptr) receive_eights<TX>(from, tag, raw);
  }
};

// Puts the norm of rows of the residual stream into xs, as bfloat16.
template <class TX, int kHeld>
__device__ __forceinline__ void stage_norm(char* xs, const TokenLinear& linear, const float* norm,
                                           double eps, int rows, float (*squares)[kTokenWarps],
                                           const StreamSource& source) {
  const int thread = static_cast<int>(threadIdx.x), eights = linear.steps * kStepChunks;
  float4 scale[kHeld][2];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (k * kTokenThreads >= linear.chunks) break;
    const int i = thread + k * kTokenThreads;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      scale[k][j] = i < linear.chunks ? __ldg(reinterpret_cast<const float4*>(norm) + 2 * i + j)
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
#pragma unroll 1
  for (int m = 0; m < rows; ++m) {
    uint32_t raw[kHeld][8 / kWordElements<TX>];
    source.load<TX>(raw, m, linear);
    float x[kHeld][8], sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (k * kTokenThreads >= linear.chunks) break;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const uint32_t word = raw[k][e / kWordElements<TX>];
        x[k][e] = kWordElements<TX> == 1 ? __uint_as_float(word)
                  : e % 2 == 0           ? __uint_as_float(word << 16)
                                         : __uint_as_float(word & 0xffff0000u);
        sum = fmaf(x[k][e], x[k][e], sum);
      }
    }
    sum = warp_sum(sum);
    if (thread % kWarpSize == 0) squares[m][thread / kWarpSize] = sum;
    TokenBarrier::sync();
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < kTokenWarps; v += 4) {
      const float4 four = *reinterpret_cast<const float4*>(squares[m] + v);
      total = total + four.x + four.y + four.z + four.w;
    }
    const float r = norm_factor(total, linear.in, eps);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = thread + k * kTokenThreads;
      if (k * kTokenThreads >= eights) break;
      if (i >= eights) continue;
      const float scales[8] = {scale[k][0].x, scale[k][0].y, scale[k][0].z, scale[k][0].w,
                               scale[k][1].x, scale[k][1].y, scale[k][1].z, scale[k][1].w};
      float y[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] = scales[e] * (x[k][e] * r);
      store_vec(reinterpret_cast<bfloat16*>(xs + m * linear.steps * kStepBytes) + i * 8, y);
    }
  }
  TokenBarrier::sync();
}

// Puts rows of words into xs as they are.
template <int kHeld>
__device__ __forceinline__ void stage_words(char* xs, const TokenLinear& linear, const Word* words,
                                            uint32_t tag, int rows) {
  const int row_chunks = linear.steps * kStepChunks, count = rows * row_chunks;
  constexpr int kWords = 8 / kWordElements<bfloat16>;
#pragma unroll 1
  for (int base = static_cast<int>(threadIdx.x); base < count; base += kHeld * kTokenThreads) {
    const Word* from[kHeld];
    uint32_t raw[kHeld][kWords] = {};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = base + k * kTokenThreads, m = i < row_chunks ? 0 : i / row_chunks;
      const int c = i - m * row_chunks;
      const bool present = i < count && c < linear.chunks;
      from[k] = present ? words + (m * linear.chunks + c) * kWords : nullptr;
    }
    receive_eights<bfloat16>(from, tag, raw);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = base + k * kTokenThreads;
      if (i >= count) continue;
      *reinterpret_cast<uint4*>(xs + i * 16) =
          make_uint4(raw[k][0], raw[k][1], raw[k][2], raw[k][3]);
    }
  }
  TokenBarrier::sync();
}

}  // namespace quern::kernels::cuda
