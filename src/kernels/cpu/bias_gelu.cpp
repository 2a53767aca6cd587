// GELU of a product plus bias, bound by memory and by a dozen vector instructions an element.
#include "kernels/bias_gelu.h"

#include "kernels/common/pointwise_math.h"
#include "kernels/cpu/column_sum.h"

namespace quern::kernels::cpu {

template <class T>
void bias_gelu_forward(T* y, const T* x, const T* b, int64_t rows, int64_t F, Stream) {
  using A = acc_t<T>;
  parallel_for(rows, row_grain(F), [=](int64_t begin, int64_t end) {
    for (int64_t at = begin * F; at < end * F; at += F) {
      vector_for(0, F, [=](int64_t c) {
        const A bias = b == nullptr ? A(0) : static_cast<A>(b[c]);
        y[at + c] = static_cast<T>(GeluTanh{}.forward(static_cast<A>(x[at + c]) + bias));
      });
    }
  });
}

int64_t bias_gelu_backward_scratch(int64_t rows, int64_t F, Stream) {
  return partial_sum_bytes(rows, F);
}

template <class T>
void bias_gelu_backward(T* dx, T* y, acc_t<T>* db, const T* dy, const T* x, const T* b,
                        int64_t rows, int64_t F, bool add_db, void* scratch, Stream) {
  using A = acc_t<T>;
  A* const partial = db == nullptr ? nullptr : static_cast<A*>(scratch);
  for_row_chunks(rows, F, partial, [=](int64_t begin, int64_t end, A* sums) {
    for (int64_t at = begin * F; at < end * F; at += F) {
      vector_for(0, F, [=](int64_t c) {
        const A bias = b == nullptr ? A(0) : static_cast<A>(b[c]);
        const A from = static_cast<A>(x[at + c]) + bias;
        const A grad = GeluTanh{}.backward(from, A(0), static_cast<A>(dy[at + c]));
        dx[at + c] = static_cast<T>(grad);
        if (y != nullptr) y[at + c] = static_cast<T>(GeluTanh{}.forward(from));
        if (sums != nullptr) sums[c] += grad;
      });
    }
  });
  if (db != nullptr) fold_chunks(db, partial, rows, F, F, add_db);
}

template decltype(bias_gelu_forward<float>) bias_gelu_forward<float>;
template decltype(bias_gelu_forward<bfloat16>) bias_gelu_forward<bfloat16>;
template decltype(bias_gelu_forward<double>) bias_gelu_forward<double>;
template decltype(bias_gelu_backward<float>) bias_gelu_backward<float>;
template decltype(bias_gelu_backward<bfloat16>) bias_gelu_backward<bfloat16>;
template decltype(bias_gelu_backward<double>) bias_gelu_backward<double>;

}  // namespace quern::kernels::cpu
