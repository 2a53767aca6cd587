// y (rows, out) = x w^T for a few rows of x (rows, in), with the norm before it and the addition or
// SwiGLU behind it. Bound by reading w (out, in) once. Every warp has 8 accesses of 512 bytes under
// way, the first ones from before the previous kernel has ended; x is in shared memory.
#include "kernels/decode_linear.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/decode/decode_linear.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

// Limit of a block's dynamic shared memory, low enough for another kernel's to fit beside it.
int64_t most_shared_bytes() {
  constexpr int64_t kMost = 200 << 10, kStatic = 2 << 10;
  return std::min(kMost, device_traits().shared_bytes_per_block - kStatic);
}

template <class T>
struct LinearWork {
  DecodeLinear<T> l;
  LinearPlan plan;
  int steps = 0, chunks = 0;  // of a row
  int x_stride = 0;           // bytes from a row of x to the next in shared memory
};

// Elements [8 i, 8 i + 8) of a row that another kernel wrote; zeros past n. Bypasses L1, which may
// hold older ones.
template <class TX>
__device__ __forceinline__ void load_fresh(float (&x)[8], const TX* row, int i, int n,
                                           bool vectors) {
  constexpr int kElements = kChunkElements<TX>;
#pragma unroll
  for (int j = 0; j < 8 / kElements; ++j) {
    const int c = i * (8 / kElements) + j;
    uint4 raw;
    if (vectors && (c + 1) * kElements <= n) {
      raw = __ldcg(reinterpret_cast<const uint4*>(row) + c);
    } else {
      raw = gather_chunk(row, c, n);
    }
    float part[kElements];
    unpack<TX>(part, raw);
#pragma unroll
    for (int e = 0; e < kElements; ++e) x[j * kElements + e] = part[e];
  }
}

// Copies rows of the stream, or of x, to shared memory as they are.
template <class T>
__device__ __forceinline__ void stage_rows(char* xs, const T* x, const LinearWork<T>& work,
                                           bool vectors) {
  const int in = static_cast<int>(work.l.in), row_chunks = work.steps * kStepChunks;
  const int count = static_cast<int>(work.l.rows) * row_chunks;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kLinearThreads) {
    const int m = i < row_chunks ? 0 : i / row_chunks, c = i - m * row_chunks;
    const T* const row = x + static_cast<int64_t>(m) * in;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (vectors) {
      if (c < work.chunks) chunk = __ldcg(reinterpret_cast<const uint4*>(row) + c);
    } else {
      chunk = gather_chunk(row, c, in);
    }
    *reinterpret_cast<uint4*>(xs + i * 16) = chunk;
  }
}

// Eight elements of row m of the stream: from shared memory, where stage_rows put them, or from
// global memory if their type is not that of x.
template <class T, class TX>
__device__ __forceinline__ void load_stream(float (&x)[8], const char* xs, const TX* stream, int m,
                                            int i, const LinearWork<T>& work, bool vectors) {
  if constexpr (sizeof(TX) == sizeof(T)) {
    load_vec(x, reinterpret_cast<const T*>(xs + m * work.x_stride) + i * 8);
  } else {
    load_fresh(x, stream + static_cast<int64_t>(m) * work.l.in, i, static_cast<int>(work.l.in),
               vectors);
  }
}

// The norm of the stream's rows. A row's sum of squares is divided over 8 x 32 virtual lanes. One
// warp (many rows) to all warps (one row) compute them, with the same bits.
template <class T, class TX>
__device__ __forceinline__ void stage_norm(char* xs, const float* norm, const TX* stream,
                                           const LinearWork<T>& work, bool vectors) {
  __shared__ float squares[16][kLinearWarps];
  const int rows = static_cast<int>(work.l.rows);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int share = rows == 1 ? 8 : rows == 2 ? 4 : rows <= 4 ? 2 : 1;  // warps a row
  const int eights = work.steps * kStepChunks * kChunkElements<T> / 8;  // with the padding
  if constexpr (sizeof(TX) == sizeof(T)) stage_rows(xs, stream, work, vectors);
  __syncthreads();
  for (int m = warp / share; m < rows; m += kLinearWarps / share) {
    for (int v = warp % share; v < kLinearWarps; v += share) {
      float sum = 0.0f;
      for (int i = v * kWarpSize + lane; i < eights; i += kLinearThreads) {
        float x[8];
        load_stream(x, xs, stream, m, i, work, vectors);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(x[e], x[e], sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) squares[m][v] = sum;
    }
  }
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x); k < rows * eights; k += kLinearThreads) {
    const int m = k < eights ? 0 : k / eights, i = k - m * eights;
    float sum = 0.0f, x[8], scale[8];
#pragma unroll
    for (int v = 0; v < kLinearWarps; ++v) sum += squares[m][v];
    const float r = norm_factor(sum, work.l.in, work.l.eps);
    load_stream(x, xs, stream, m, i, work, vectors);
    load_vec(scale, norm + i * 8);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = scale[e] * (x[e] * r);
    store_vec(reinterpret_cast<T*>(xs + m * work.x_stride) + i * 8, x);
  }
}

// Copies the norm's weights to shared memory, with zeros in the padding.
template <class T>
__device__ __forceinline__ void stage_norm_weights(float* norm, const LinearWork<T>& work) {
  const int quads = work.steps * kStepChunks * kChunkElements<T> / 4,
            in = static_cast<int>(work.l.in);
  const bool vectors = reinterpret_cast<uintptr_t>(work.l.norm) % 16 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < quads; i += kLinearThreads) {
    float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (vectors && 4 * i + 4 <= in) {
      quad = __ldg(reinterpret_cast<const float4*>(work.l.norm) + i);
    } else {
      float* const element = &quad.x;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (4 * i + e < in) element[e] = __ldg(work.l.norm + 4 * i + e);
      }
    }
    reinterpret_cast<float4*>(norm)[i] = quad;
  }
}

// One element of the output. Its addend is loaded long before as raw bits, so that nothing waits
// for it until it is used.
template <class T>
struct LinearOutput {
  const DecodeLinear<T>& l;
  int width;  // of the output

  __device__ __forceinline__ uint32_t load_before(int m, int n) const {
    const int64_t at = int64_t{m} * width + n;
    if (l.output == DecodeOutput::add) {
      return l.fp32_stream ? load_bits(static_cast<const float*>(l.stream) + at)
                           : load_bits(static_cast<const T*>(l.stream) + at);
    }
    return l.bias != nullptr ? load_bits(l.bias + n) : 0;
  }
  __device__ __forceinline__ void store(int m, int n, float first, float second,
                                        uint32_t before) const {
    const int64_t at = int64_t{m} * width + n;
    const float y = rounded<T>(first);
    if (l.output == DecodeOutput::store) {
      l.y[at] = from_float<T>(y + of_bits<T>(before));
    } else if (l.output == DecodeOutput::swiglu) {
      l.y[at] = from_float<T>(decode_swiglu<T>(first, second));
    } else if (l.fp32_stream) {
      static_cast<float*>(l.stream)[at] = of_bits<float>(before) + y;
    } else {
      static_cast<T*>(l.stream)[at] = from_float<T>(of_bits<T>(before) + y);
    }
  }

 private:
  static __device__ __forceinline__ uint32_t load_bits(const float* p) {
    return __float_as_uint(__ldcg(p));
  }
  static __device__ __forceinline__ uint32_t load_bits(const bfloat16* p) {
    return __ldcg(reinterpret_cast<const unsigned short*>(p));
  }
  template <class TX>
  static __device__ __forceinline__ float of_bits(uint32_t bits) {
    return __uint_as_float(sizeof(TX) == 4 ? bits : bits << 16);
  }
};

template <class T, int kRows, bool kVectors>
__global__ void __launch_bounds__(kLinearThreads, kRows <= 2   ? 3
                                                  : kRows <= 8 ? 2
                                                               : 1)
    decode_linear_kernel(const __grid_constant__ LinearWork<T> work) {
  extern __shared__ uint4 shared_memory[];
  const DecodeLinear<T>& l = work.l;
  const LinearPlan& plan = work.plan;
  const int rows = static_cast<int>(l.rows), sums = rows * kPair;  // sums of a warp
  char* const xs = reinterpret_cast<char*>(shared_memory);
  float* const norm = reinterpret_cast<float*>(xs + rows * work.x_stride);
  float* const partial = norm + (l.x == nullptr ? work.x_stride / sizeof(T) : 0);
  let_next_start();

  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int team = warp / plan.parts, part = warp % plan.parts;
  const int begin = work.steps * part / plan.parts, end = work.steps * (part + 1) / plan.parts;
  const int out = static_cast<int>(l.out), stride = plan.blocks * plan.teams;
  const bool swiglu = l.output == DecodeOutput::swiglu;
  const int to_second = swiglu ? out / 2 : 1, to_next = swiglu ? 1 : kPair;  // rows
  // This lane's chunks of a pair: the next one in each row, and how many there are from it to the
  // end of the warp's part.
  struct Source {
    const T* p[kPair];
    int chunks;
  };
  const auto source_of = [&](int pair) {
    const int c = begin * kStepChunks + lane, row = min(pair, plan.pairs - 1) * to_next;
    const T* const first = l.w + row * l.in + c * kChunkElements<T>;
    const T* const second = row + to_second < out ? first + to_second * l.in : first;
    return Source{{first, second}, pair < plan.pairs ? min(end * kStepChunks, work.chunks) - c : 0};
  };
  const int tail = static_cast<int>(l.in) - (work.chunks - 1) * kChunkElements<T>;
  const auto fetch = [&](const Source& source, int j, int u) {
    const T* const p = source.p[j] + u * kStepChunks * kChunkElements<T>;
    const bool present = source.chunks > u * kStepChunks;
    if constexpr (kVectors) return load_weights(p, present);
    const bool last = end * kStepChunks >= work.chunks && source.chunks == u * kStepChunks + 1;
    return gather_chunk(p, 0, !present ? 0 : last ? tail : kChunkElements<T>);
  };

  int first = static_cast<int>(blockIdx.x) * plan.teams;  // the block's pairs
  Source source = source_of(first + team);
  if (l.x == nullptr) stage_norm_weights(norm, work);
  uint4 w[kStepsAhead][kPair];
#pragma unroll
  for (int u = 0; u < kStepsAhead; ++u) {
    if (u >= plan.steps_before) continue;
#pragma unroll
    for (int j = 0; j < kPair; ++j) w[u][j] = fetch(source, j, u);
  }

  const LinearOutput<T> output{l, swiglu ? out / 2 : out};
  // The block's outputs are ordered by team, row of x, and row of w (or of its first half).
  const int each = swiglu ? 1 : kPair, count = plan.teams * rows * each;
  // Place of this thread's first output, computed before the wait.
  const int my = static_cast<int>(threadIdx.x);
  const int my_m = my / each % rows, my_n = my / (rows * each) * each + my % each;
  const int my_sums = my / (rows * each) * plan.parts * sums + my_m * kPair;
  const auto load_before = [&](int begin_pair) {
    const int n = begin_pair * each + my_n;
    return my < count && n < output.width ? output.load_before(my_m, n) : 0;
  };
  wait_for_previous();
  uint32_t before = load_before(first);
  if (l.x != nullptr) {
    stage_rows(xs, l.x, work, kVectors);
  } else if (l.fp32_stream) {
    stage_norm(xs, norm, static_cast<const float*>(l.stream), work, kVectors);
  } else {
    stage_norm(xs, norm, static_cast<const T*>(l.stream), work, kVectors);
  }
#pragma unroll
  for (int u = 0; u < kStepsAhead; ++u) {
    if (u < plan.steps_before) continue;
#pragma unroll
    for (int j = 0; j < kPair; ++j) w[u][j] = fetch(source, j, u);
  }
  __syncthreads();

  for (int turn = 0; first < plan.pairs; first += stride, turn ^= 1) {
    const Source next = source_of(first + stride + team);
    RowProducts<T, kRows> products;
    for (int s = begin; s < end; s += kStepsAhead) {
      source.p[0] += kStepsAhead * kStepChunks * kChunkElements<T>;
      source.p[1] += kStepsAhead * kStepChunks * kChunkElements<T>;
      source.chunks -= kStepsAhead * kStepChunks;
      if (s + kStepsAhead >= end) source = next;
#pragma unroll
      for (int u = 0; u < kStepsAhead; ++u) {
        if (s + u < end) {
          products.add(w[u], xs + (s + u) * kStepBytes + lane * 16, work.x_stride, rows);
        }
#pragma unroll
        for (int j = 0; j < kPair; ++j) w[u][j] = fetch(source, j, u);
      }
    }
    float* const turn_sums = partial + turn * kLinearWarps * sums;
    products.store(turn_sums + warp * sums, rows);
    __syncthreads();
    const uint32_t next_before = load_before(first + stride);
    const auto finish = [&](int m, int n, int at, int j, uint32_t added) {
      float total = 0.0f, second = 0.0f;
      for (int p = 0; p < plan.parts; ++p) {
        total += turn_sums[at + p * sums + j];
        second += turn_sums[at + p * sums + 1];
      }
      output.store(m, n, total, second, added);
    };
    const int n = first * each + my_n;
    if (my < count && n < output.width) finish(my_m, n, my_sums, swiglu ? 0 : my % each, before);
    for (int i = my + kLinearThreads; i < count; i += kLinearThreads) {
      const int m = i / each % rows, team_of = i / (rows * each);
      const int later = (first + team_of) * each + i % each;
      if (later >= output.width) continue;
      finish(m, later, team_of * plan.parts * sums + m * kPair, swiglu ? 0 : i % each,
             output.load_before(m, later));
    }
    before = next_before;
  }
}

// x, the norm's weights, and (2, warps, rows, kPair) sums.
template <class T>
int64_t shared_bytes(int64_t rows, int64_t in, bool norm) {
  const int64_t row = ceil_div(in * static_cast<int64_t>(sizeof(T)), kStepBytes) * kStepBytes;
  const int64_t sums = 2 * kLinearWarps * rows * kPair * static_cast<int64_t>(sizeof(float));
  return rows * row + (norm ? row / static_cast<int64_t>(sizeof(T)) * 4 : 0) + sums;
}

template <class T, int kRows>
void launch_rows_of(const LinearWork<T>& work, bool vectors, bool early, Stream stream) {
  const auto kernel =
      vectors ? decode_linear_kernel<T, kRows, true> : decode_linear_kernel<T, kRows, false>;
  const LaunchOptions options{1, early && has_hopper_code(kernel)};
  launch(options, kernel, one_block_each(work.plan.blocks), dim3(kLinearThreads),
         static_cast<size_t>(shared_bytes<T>(work.l.rows, work.l.in, work.l.x == nullptr)), stream,
         work);
}

// Blocks that fit on a multiprocessor together, by registers (launch bounds) and shared memory.
template <class T>
int resident_blocks(int64_t rows, int64_t in, bool norm) {
  constexpr int64_t kShared = 220 << 10;
  const int64_t by_registers = rows <= 2 ? 3 : rows <= 8 ? 2 : 1;
  return static_cast<int>(std::min(by_registers, kShared / shared_bytes<T>(rows, in, norm)));
}

// The arguments of one launch, for rows [begin, begin + rows).
template <class T>
DecodeLinear<T> some_rows(DecodeLinear<T> l, int64_t begin, int64_t rows) {
  const int64_t width = l.output == DecodeOutput::swiglu ? l.out / 2 : l.out;
  const int64_t stream_width = l.output == DecodeOutput::add ? l.out : l.in;
  l.rows = rows;
  if (l.x != nullptr) l.x += begin * l.in;
  if (l.y != nullptr) l.y += begin * width;
  if (l.stream != nullptr) {
    l.stream = static_cast<char*>(l.stream) +
               begin * stream_width * static_cast<int64_t>(l.fp32_stream ? 4 : sizeof(T));
  }
  return l;
}

}  // namespace

template <class T>
bool decode_linear_fits(int64_t in, bool norm, Stream) {
  return shared_bytes<T>(1, in, norm) <= most_shared_bytes();
}

template <class T>
void decode_linear(const DecodeLinear<T>& l, Stream stream, bool early) {
  const bool norm = l.x == nullptr;
  QUERN_CHECK(l.in >= 1 && decode_linear_fits<T>(l.in, norm, stream), "decode_linear: in is ", l.in,
              ", expected what fits into shared memory");
  QUERN_CHECK(l.out <= INT32_MAX - kPair, "decode_linear: out is ", l.out, ", expected below 2^31");
  constexpr int64_t kMostRows = sizeof(T) == 2 ? 16 : 8;
  int64_t most = std::min(kMostRows, l.rows);
  while (shared_bytes<T>(most, l.in, norm) > most_shared_bytes()) --most;
  LinearWork<T> work;
  const int64_t bytes = l.in * static_cast<int64_t>(sizeof(T));
  work.plan = plan_linear(bytes, l.out, resident_blocks<T>(most, l.in, norm));
  work.steps = static_cast<int>(ceil_div(bytes, kStepBytes));
  work.chunks = static_cast<int>(ceil_div(bytes, 16));
  work.x_stride = work.steps * kStepBytes;
  const bool vectors =
      bytes % 16 == 0 && aligned16({l.w, l.x, l.x == nullptr ? l.stream : nullptr});
  for (int64_t begin = 0; begin < l.rows; begin += most) {
    work.l = some_rows(l, begin, std::min(most, l.rows - begin));
    if constexpr (sizeof(T) == 2) {
      work.l.rows <= 2   ? launch_rows_of<T, 2>(work, vectors, early, stream)
      : work.l.rows <= 8 ? launch_rows_of<T, 8>(work, vectors, early, stream)
                         : launch_rows_of<T, 16>(work, vectors, early, stream);
    } else if (work.l.rows == 1) {
      launch_rows_of<T, 1>(work, vectors, early, stream);
    } else {
      launch_rows_of<T, 8>(work, vectors, early, stream);
    }
  }
}

template decltype(decode_linear_fits<float>) decode_linear_fits<float>;
template decltype(decode_linear_fits<bfloat16>) decode_linear_fits<bfloat16>;
template decltype(decode_linear<float>) decode_linear<float>;
template decltype(decode_linear<bfloat16>) decode_linear<bfloat16>;

}  // namespace quern::kernels::cuda
