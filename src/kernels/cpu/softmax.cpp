// Softmax and log-softmax along rows: three passes over a row that stays in the cache (maximum, sum
// of exponentials, result). In a row of -inf, 0 is subtracted instead of the maximum, so that its
// exponentials are 0 and not NaN.
#include "kernels/softmax.h"

#include <cmath>

#include "kernels/common/math.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

template <class A, class T>
A row_shift(const T* x, int64_t cols) {
  const A max = lane_max<A>(cols, -INFINITY, [=](int64_t c) { return static_cast<A>(x[c]); });
  return max == -INFINITY ? A(0) : max;
}

// y = exp(x - shift) / sum, or for kLog x - shift - log(sum).
template <bool kLog, class T>
void forward(T* y, const T* x, int64_t rows, int64_t cols) {
  using A = acc_t<T>;
  parallel_rows(rows, cols, [=](int64_t r) {
    const T* in = x + r * cols;
    T* out = y + r * cols;
    const A shift = row_shift<A>(in, cols);
    const A sum =
        lane_sum<A>(cols, [=](int64_t c) { return math::exp(static_cast<A>(in[c]) - shift); });
    const A inverse = sum == A(0) ? A(0) : A(1) / sum;
    const A log_sum = sum == A(0) ? A(0) : math::log(sum);
    vector_for(0, cols, [=](int64_t c) {
      const A shifted = static_cast<A>(in[c]) - shift;
      out[c] = static_cast<T>(kLog ? shifted - log_sum : math::exp(shifted) * inverse);
    });
  });
}

// dx = y (dy - sum(y dy)), or for kLog dy - exp(y) sum(dy).
template <bool kLog, class T>
void backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols) {
  using A = acc_t<T>;
  parallel_rows(rows, cols, [=](int64_t r) {
    const T *in = y + r * cols, *grad = dy + r * cols;
    T* out = dx + r * cols;
    const A sum = lane_sum<A>(cols, [=](int64_t c) {
      return kLog ? static_cast<A>(grad[c]) : static_cast<A>(in[c]) * static_cast<A>(grad[c]);
    });
    vector_for(0, cols, [=](int64_t c) {
      const A value = static_cast<A>(in[c]), g = static_cast<A>(grad[c]);
      out[c] = static_cast<T>(kLog ? g - math::exp(value) * sum : value * (g - sum));
    });
  });
}

}  // namespace

template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, bool log, Stream) {
  log ? forward<true>(y, x, rows, cols) : forward<false>(y, x, rows, cols);
}

template <class T>
void softmax_online_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  parallel_rows(rows, cols, [=](int64_t r) {
    const T* in = x + r * cols;
    T* out = y + r * cols;
    A max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const A v = static_cast<A>(in[c]);
      if (v == -INFINITY) continue;
      const A larger = v > max ? v : max;
      sum = sum * math::exp(max - larger) + math::exp(v - larger);
      max = larger;
    }
    const A shift = max == -INFINITY ? A(0) : max, inverse = sum == A(0) ? A(0) : A(1) / sum;
    vector_for(0, cols, [=](int64_t c) {
      out[c] = static_cast<T>(math::exp(static_cast<A>(in[c]) - shift) * inverse);
    });
  });
}

template <class T>
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, bool log,
                      Stream) {
  log ? backward<true>(dx, y, dy, rows, cols) : backward<false>(dx, y, dy, rows, cols);
}

#define QUERN_INSTANTIATE(T)                                              \
  template decltype(softmax_forward<T>) softmax_forward<T>;               \
  template decltype(softmax_online_forward<T>) softmax_online_forward<T>; \
  template decltype(softmax_backward<T>) softmax_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
