// Rotary position embedding on (B, T, H, D) views. A thread rotates the same up to 8 pairs of
// several heads of a token, with one read of the tables, and has all its loads in flight at once.
// Bound by memory: one read and one write of x; the tables stay in cache.
#include "kernels/rope.h"

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/strided.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;        // of the table
constexpr int kRotateThreads = 128;  // small, so that short inputs spread evenly
constexpr int kMinBlocks = 6;        // a multiprocessor: caps the registers at 85 a thread
constexpr int kHeadsPerThread = 4;
constexpr int64_t kEnoughThreads = 1 << 15;  // to fill a GPU; with fewer, a thread takes one head

// n / divisor for 0 <= n <= largest: a multiplication where 31 bits hold every n.
struct Divisor {
  int64_t divisor;
  bool narrow;
  FastDivisor fast;

  Divisor(int64_t divisor_in, int64_t largest)
      : divisor(divisor_in),
        narrow(largest <= INT32_MAX && divisor <= INT32_MAX),
        fast(narrow ? static_cast<uint32_t>(divisor) : 1) {}
  __device__ __forceinline__ int64_t divide(int64_t n) const {
    return narrow ? fast.divide(static_cast<uint32_t>(n)) : n / divisor;
  }
};

// Who rotates what: item = (token lanes + lane) chunks + chunk. A lane takes the heads lane,
// lane + lanes, ..., so that neighbours read neighbouring heads; a chunk is kWidth pairs of a head.
struct Work {
  int64_t items;
  Divisor chunks, lanes, T;

  Work(const RopeLayout& s, int64_t chunks_in, int64_t lanes_in)
      : items(s.B * s.T * lanes_in * chunks_in),
        chunks(chunks_in, items),
        lanes(lanes_in, items),
        T(s.T, items) {}
};

// direction: 1 forward, -1 backward. y may be x: a thread reads all that it writes before it
// writes.
template <class T, int kWidth, int kHeads>
__global__ void __launch_bounds__(kRotateThreads, kMinBlocks)
    rope_kernel(T* y, const T* x, const float* cos, const float* sin, const int32_t* positions,
                const __grid_constant__ RopeLayout s, const __grid_constant__ Work work,
                float direction) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kRotateThreads + threadIdx.x;
  if (item >= work.items) return;
  const int64_t row = work.chunks.divide(item);
  const int64_t token = work.lanes.divide(row);
  const int64_t b = work.T.divide(token);
  const int64_t d = (item - row * work.chunks.divisor) * kWidth;
  const int64_t lane = row - token * work.lanes.divisor;
  const int64_t t = token - b * s.T;
  const int64_t half = s.D / 2;
  const auto head = [&](int i) { return lane + i * work.lanes.divisor; };

  Raw<T, kWidth> first[kHeads], second[kHeads];
  const T* const source = x + b * s.x_strides[0] + t * s.x_strides[1] + d;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (head(i) < s.H) {
      first[i] = load_raw<kWidth>(source + head(i) * s.x_strides[2]);
      second[i] = load_raw<kWidth>(source + head(i) * s.x_strides[2] + half);
    }
  }
  int64_t position = s.first_position + t;
  if (positions != nullptr) position = positions[s.positions_per_batch ? token : t];
  float c[kWidth], n[kWidth];
  load_vec(c, cos + position * half + d);
  load_vec(n, sin + position * half + d);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) n[j] *= direction;

  T* const target = y + b * s.y_strides[0] + t * s.y_strides[1] + d;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (head(i) < s.H) {
      float x1[kWidth], x2[kWidth], y1[kWidth], y2[kWidth];
      unpack<T>(x1, first[i]);
      unpack<T>(x2, second[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        y1[j] = x1[j] * c[j] - x2[j] * n[j];
        y2[j] = x2[j] * c[j] + x1[j] * n[j];
      }
      store_raw(target + head(i) * s.y_strides[2], y1);
      store_raw(target + head(i) * s.y_strides[2] + half, y2);
    }
  }
}

__global__ void rope_table_kernel(float* cos_out, float* sin_out, int64_t total, int64_t half,
                                  double theta) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index < total; index += step) {
    const double exponent = -static_cast<double>(index % half) / static_cast<double>(half);
    const double angle = static_cast<double>(index / half) * pow(theta, exponent);
    cos_out[index] = static_cast<float>(cos(angle));
    sin_out[index] = static_cast<float>(sin(angle));
  }
}

bool divisible(const int64_t (&strides)[3], int64_t by) {
  return strides[0] % by == 0 && strides[1] % by == 0 && strides[2] % by == 0;
}

}  // namespace

template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream stream) {
  QUERN_CHECK(layout.D % 2 == 0, "rope: head_dim is ", layout.D, ", expected an even number");
  const int64_t half = layout.D / 2;
  if (layout.B * layout.T * layout.H * half == 0) return;
  const float direction = inverse ? -1.0f : 1.0f;
  const auto rotate = [&](auto width, auto heads) {
    const Work work(layout, half / width, ceil_div(layout.H, heads.value));
    launch(rope_kernel<T, width, heads>, one_block_each(ceil_div(work.items, kRotateThreads)),
           dim3(kRotateThreads), 0, stream, y, x, cos, sin, positions, layout, work, direction);
  };
  constexpr std::integral_constant<int, kVecSize<T>> kVector;
  constexpr std::integral_constant<int, kHeadsPerThread> kSeveral;
  constexpr std::integral_constant<int, 1> kOne;
  const bool vectors = aligned16({y, x, cos, sin}) && half % kVector == 0 &&
                       divisible(layout.x_strides, kVector) && divisible(layout.y_strides, kVector);
  const int64_t threads =
      layout.B * layout.T * ceil_div(layout.H, kHeadsPerThread) * (half / kVector);
  if (!vectors) {
    rotate(kOne, kSeveral);
  } else if (threads < kEnoughThreads) {
    rotate(kVector, kOne);
  } else {
    rotate(kVector, kSeveral);
  }
}

template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta, Stream stream) {
  const int64_t total = positions * (D / 2);
  launch(rope_table_kernel, grid_stride_blocks(total, kThreads), dim3(kThreads), 0, stream, cos,
         sin, total, D / 2, theta);
}

template void rope<float>(float*, const float*, const float*, const float*, const int32_t*,
                          const RopeLayout&, bool, Stream);
template void rope<bfloat16>(bfloat16*, const bfloat16*, const float*, const float*, const int32_t*,
                             const RopeLayout&, bool, Stream);
template void rope_table<float>(float*, float*, int64_t, int64_t, double, Stream);

}  // namespace quern::kernels::cuda
