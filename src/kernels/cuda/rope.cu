// Rotary position embedding on (B, T, H, D) views. A thread rotates up to 8 pairs of one head, two
// 16-byte vectors: many small blocks that follow the order of memory come closest to a copy.
// Bound by memory: one read and one write of x; the tables stay in cache.
#include "kernels/rope.h"

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kMinBlocks = 10;  // a multiprocessor; more, with fewer registers, are slower

// A thread's work: thread = (token H + head) chunks + chunk; a chunk is kWidth pairs of a head.
struct Work {
  uint32_t threads;
  FastDivisor chunks, heads, T;

  Work(const RopeLayout& s, int64_t chunks_in)
      : threads(static_cast<uint32_t>(s.B * s.T * s.H * chunks_in)),
        chunks(static_cast<uint32_t>(chunks_in)),
        heads(static_cast<uint32_t>(s.H)),
        T(static_cast<uint32_t>(s.T)) {}
};

// direction: 1 forward, -1 backward. y may be x: a thread reads all its pairs before it writes.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    rope_kernel(T* y, const T* x, const float* cos, const float* sin, const int32_t* positions,
                const __grid_constant__ RopeLayout s, const __grid_constant__ Work work,
                float direction) {
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= work.threads) return;
  const uint32_t row = work.chunks.divide(thread);
  const uint32_t token = work.heads.divide(row);
  const uint32_t b = work.T.divide(token);
  const uint32_t d = (thread - row * work.chunks.divisor) * kWidth;
  const uint32_t h = row - token * work.heads.divisor;
  const uint32_t t = token - b * work.T.divisor;
  const int64_t half = s.D / 2;

  const T* const source = x + b * s.x_strides[0] + t * s.x_strides[1] + h * s.x_strides[2] + d;
  const Raw<T, kWidth> first = load_raw<kWidth>(source);
  const Raw<T, kWidth> second = load_raw<kWidth>(source + half);
  int64_t position = s.first_position + t;
  if (positions != nullptr) position = positions[s.positions_per_batch ? token : t];
  float c[kWidth], n[kWidth];
  if (positions != nullptr && (position < 0 || position >= s.table_rows)) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) c[j] = n[j] = NAN;
  } else {
    load_vec(c, cos + position * half + d);
    load_vec(n, sin + position * half + d);
  }

  float x1[kWidth], x2[kWidth], y1[kWidth], y2[kWidth];
  unpack<T>(x1, first);
  unpack<T>(x2, second);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    n[j] *= direction;
    y1[j] = x1[j] * c[j] - x2[j] * n[j];
    y2[j] = x2[j] * c[j] + x1[j] * n[j];
  }
  T* const target = y + b * s.y_strides[0] + t * s.y_strides[1] + h * s.y_strides[2] + d;
  store_raw(target, y1);
  store_raw(target + half, y2);
}

__global__ void rope_table_kernel(float* cos_out, float* sin_out, int64_t total, int64_t half,
                                  double theta, RopeScaling scaling) {
  for_each_index(total, [&](int64_t index) {
    const double frequency = rope_frequency(index % half, 2 * half, theta, scaling);
    const double angle = static_cast<double>(index / half) * frequency;
    cos_out[index] = static_cast<float>(cos(angle));
    sin_out[index] = static_cast<float>(sin(angle));
  });
}

bool divisible(const int64_t (&strides)[3], int64_t by) {
  return strides[0] % by == 0 && strides[1] % by == 0 && strides[2] % by == 0;
}

// Halves work that needs too many threads for 32-bit numbers: by batch, or one sequence by tokens.
template <class T>
void rope_in_halves(T* y, const T* x, const float* cos, const float* sin, const int32_t* positions,
                    const RopeLayout& layout, bool inverse, Stream stream) {
  RopeLayout lower = layout, upper = layout;
  const bool by_batch = layout.B > 1;
  const int64_t skipped = (by_batch ? layout.B : layout.T) / 2;
  QUERN_CHECK(skipped > 0, "rope: ", layout.H, " heads of ", layout.D, " are too large");
  (by_batch ? lower.B : lower.T) = skipped;
  (by_batch ? upper.B : upper.T) -= skipped;
  if (!by_batch) upper.first_position += skipped;
  const int32_t* upper_positions = positions;
  if (positions != nullptr && !by_batch) upper_positions += skipped;
  if (positions != nullptr && by_batch && layout.positions_per_batch) {
    upper_positions += skipped * layout.T;
  }
  const int axis = by_batch ? 0 : 1;
  rope(y, x, cos, sin, positions, lower, inverse, stream);
  rope(y + skipped * layout.y_strides[axis], x + skipped * layout.x_strides[axis], cos, sin,
       upper_positions, upper, inverse, stream);
}

}  // namespace

template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream stream) {
  QUERN_CHECK(layout.D % 2 == 0, "rope: head_dim is ", layout.D, ", expected an even number");
  const int64_t half = layout.D / 2, rows = layout.B * layout.T * layout.H;
  if (rows * half == 0) return;
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, kVecSize<T>> kVector;
  const bool vectors = aligned16({y, x, cos, sin}) && half % kVector == 0 &&
                       divisible(layout.x_strides, kVector) && divisible(layout.y_strides, kVector);
  const auto rotate = [&](auto width) {
    if (rows * (half / width) > INT32_MAX) {
      return rope_in_halves(y, x, cos, sin, positions, layout, inverse, stream);
    }
    const Work work(layout, half / width);
    launch(rope_kernel<T, width>, one_block_each(ceil_div(work.threads, kThreads)), dim3(kThreads),
           0, stream, y, x, cos, sin, positions, layout, work, inverse ? -1.0f : 1.0f);
  };
  return vectors ? rotate(kVector) : rotate(kOne);
}

template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta,
                const RopeScaling& scaling, Stream stream) {
  const int64_t total = positions * (D / 2);
  launch(rope_table_kernel, grid_stride_blocks(total, kThreads), dim3(kThreads), 0, stream, cos,
         sin, total, D / 2, theta, scaling);
}

template decltype(rope<float>) rope<float>;
template decltype(rope<bfloat16>) rope<bfloat16>;
template decltype(rope_table<float>) rope_table<float>;

}  // namespace quern::kernels::cuda
