// y = f(x) and dx = f'(x) dy for every functor of common/pointwise_math.h. Bound by memory; exp and
// similar functions by a dozen vector instructions per element.
#include "kernels/pointwise.h"

#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {
namespace {

// Calls body(i, index of element i in x) for all n elements.
template <class Body>
void for_elements(int64_t n, const PointwiseRows& rows, const Body& body) {
  if (rows.cols == 0) return parallel_elements(n, [&](int64_t i) { body(i, i); });
  const int64_t cols = rows.cols, pitch = rows.pitch;
  parallel_rows(n / cols, cols, [=](int64_t row) {
    vector_for(0, cols, [=](int64_t j) { body(row * cols + j, row * pitch + j); });
  });
}

}  // namespace

template <class T>
void pointwise_forward(T* y, const T* x, const PointwiseRows& rows, int64_t n,
                       const PointwiseOp& op, Stream) {
  using A = acc_t<T>;
  std::visit(
      [=](auto f) {
        for_elements(n, rows, [=](int64_t i, int64_t at) {
          y[i] = static_cast<T>(f.template forward<A>(static_cast<A>(x[at])));
        });
      },
      op);
}

template <class T>
void pointwise_backward(T* dx, const T* x, const PointwiseRows& rows, const T* y, const T* dy,
                        int64_t n, const PointwiseOp& op, Stream) {
  using A = acc_t<T>;
  std::visit(
      [=]<class F>(F f) {
        for_elements(n, rows, [=](int64_t i, int64_t at) {
          A saved_x = 0, saved_y = 0;
          if constexpr (F::kSaved == Saved::input) saved_x = static_cast<A>(x[at]);
          if constexpr (F::kSaved == Saved::output) saved_y = static_cast<A>(y[i]);
          dx[i] = static_cast<T>(f.template backward<A>(saved_x, saved_y, static_cast<A>(dy[i])));
        });
      },
      op);
}

#define QUERN_INSTANTIATE(T)                                    \
  template decltype(pointwise_forward<T>) pointwise_forward<T>; \
  template decltype(pointwise_backward<T>) pointwise_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
