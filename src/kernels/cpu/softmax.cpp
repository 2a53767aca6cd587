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

// Calls body(offset) for the start of every row, on all cores.
template <class Body>
void for_rows(int64_t rows, int64_t cols, const Body& body) {
  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r * cols);
  });
}

}  // namespace

template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  for_rows(rows, cols, [=](int64_t offset) {
    const T* in = x + offset;
    T* out = y + offset;
    const A shift = row_shift<A>(in, cols);
    const A sum =
        lane_sum<A>(cols, [=](int64_t c) { return math::exp(static_cast<A>(in[c]) - shift); });
    const A inverse = sum == A(0) ? A(0) : A(1) / sum;
    vector_for(0, cols, [=](int64_t c) {
      out[c] = static_cast<T>(math::exp(static_cast<A>(in[c]) - shift) * inverse);
    });
  });
}

template <class T>
void softmax_online_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  for_rows(rows, cols, [=](int64_t offset) {
    const T* in = x + offset;
    T* out = y + offset;
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
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  for_rows(rows, cols, [=](int64_t offset) {
    const T *p = y + offset, *grad = dy + offset;
    T* out = dx + offset;
    const A dot = lane_sum<A>(
        cols, [=](int64_t c) { return static_cast<A>(p[c]) * static_cast<A>(grad[c]); });
    vector_for(0, cols, [=](int64_t c) {
      out[c] = static_cast<T>(static_cast<A>(p[c]) * (static_cast<A>(grad[c]) - dot));
    });
  });
}

template <class T>
void log_softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  for_rows(rows, cols, [=](int64_t offset) {
    const T* in = x + offset;
    T* out = y + offset;
    const A shift = row_shift<A>(in, cols);
    const A sum =
        lane_sum<A>(cols, [=](int64_t c) { return math::exp(static_cast<A>(in[c]) - shift); });
    const A log_sum = sum == A(0) ? A(0) : math::log(sum);
    vector_for(0, cols, [=](int64_t c) {
      out[c] = static_cast<T>((static_cast<A>(in[c]) - shift) - log_sum);
    });
  });
}

template <class T>
void log_softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream) {
  using A = acc_t<T>;
  for_rows(rows, cols, [=](int64_t offset) {
    const T *log_p = y + offset, *grad = dy + offset;
    T* out = dx + offset;
    const A sum = lane_sum<A>(cols, [=](int64_t c) { return static_cast<A>(grad[c]); });
    vector_for(0, cols, [=](int64_t c) {
      out[c] = static_cast<T>(static_cast<A>(grad[c]) - math::exp(static_cast<A>(log_p[c])) * sum);
    });
  });
}

#define QUERN_INSTANTIATE(T)                                              \
  template decltype(softmax_forward<T>) softmax_forward<T>;               \
  template decltype(softmax_online_forward<T>) softmax_online_forward<T>; \
  template decltype(softmax_backward<T>) softmax_backward<T>;             \
  template decltype(log_softmax_forward<T>) log_softmax_forward<T>;       \
  template decltype(log_softmax_backward<T>) log_softmax_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
