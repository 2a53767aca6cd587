// y = (w x).sum(-1).
#include "kernels/weighted_sum.h"

#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {

template <class T>
void weighted_sum_forward(T* y, const T* x, const T* w, int64_t rows, int64_t C, Stream) {
  using A = acc_t<T>;
  parallel_rows(rows, C, [=](int64_t r) {
    const T* row = x + r * C;
    y[r] = static_cast<T>(
        lane_sum<A>(C, [=](int64_t c) { return static_cast<A>(row[c]) * static_cast<A>(w[c]); }));
  });
}

int64_t weighted_sum_backward_scratch(int64_t rows, int64_t C, Stream) {
  return partial_sum_bytes(rows, C);
}

template <class T>
void weighted_sum_backward(T* dx, acc_t<T>* dw, const T* dy, const T* x, const T* w, int64_t rows,
                           int64_t C, bool add_dw, void* scratch, Stream) {
  using A = acc_t<T>;
  A* partial = dw == nullptr ? nullptr : static_cast<A*>(scratch);
  for_row_chunks(rows, C, partial, [=](int64_t begin, int64_t end, A* sums) {
    for (int64_t r = begin; r < end; ++r) {
      const A grad = static_cast<A>(dy[r]);
      if (sums != nullptr) {
        const T* row = x + r * C;
        vector_for(0, C, [=](int64_t c) { sums[c] += grad * static_cast<A>(row[c]); });
      }
      if (dx != nullptr) {
        T* out = dx + r * C;
        vector_for(0, C, [=](int64_t c) { out[c] = static_cast<T>(grad * static_cast<A>(w[c])); });
      }
    }
  });
  if (dw != nullptr) fold_chunks(dw, partial, rows, C, C, add_dw);
}

template decltype(weighted_sum_forward<float>) weighted_sum_forward<float>;
template decltype(weighted_sum_forward<bfloat16>) weighted_sum_forward<bfloat16>;
template decltype(weighted_sum_forward<double>) weighted_sum_forward<double>;
template decltype(weighted_sum_backward<float>) weighted_sum_backward<float>;
template decltype(weighted_sum_backward<bfloat16>) weighted_sum_backward<bfloat16>;
template decltype(weighted_sum_backward<double>) weighted_sum_backward<double>;

}  // namespace quern::kernels::cpu
