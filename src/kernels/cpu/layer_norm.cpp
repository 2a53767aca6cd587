// LayerNorm: y = w z + b with z = (x - mean) rstd. The variance is taken in a second pass over the
// row, which is in the cache by then, as the mean squared distance from the mean.
#include "kernels/layer_norm.h"

#include <cmath>

#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {

template <class T>
void layer_norm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* w,
                        const acc_t<T>* b, int64_t rows, int64_t C, double eps, Stream) {
  using A = acc_t<T>;
  parallel_for(rows, row_grain(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* in = x + r * C;
      T* out = y + r * C;
      const A mu =
          lane_sum<A>(C, [=](int64_t c) { return static_cast<A>(in[c]); }) / static_cast<A>(C);
      const A squares = lane_sum<A>(C, [=](int64_t c) {
        const A distance = static_cast<A>(in[c]) - mu;
        return distance * distance;
      });
      const A scale = A(1) / std::sqrt(squares / static_cast<A>(C) + static_cast<A>(eps));
      vector_for(0, C, [=](int64_t c) {
        out[c] = static_cast<T>(w[c] * ((static_cast<A>(in[c]) - mu) * scale) + b[c]);
      });
      mean[r] = mu;
      rstd[r] = scale;
    }
  });
}

int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return 2 * partial_sum_bytes(rows, C);
}

// dx = rstd (g - mean(g) - z mean(g z)) with g = w dy; dw = sum of dy z, db = sum of dy.
template <class T>
void layer_norm_backward(T* dx, acc_t<T>* dw, acc_t<T>* db, const T* dy, const T* x,
                         const acc_t<T>* w, const acc_t<T>* mean, const acc_t<T>* rstd,
                         int64_t rows, int64_t C, bool add_dw, bool add_db, void* scratch, Stream) {
  using A = acc_t<T>;
  A* partial = static_cast<A*>(scratch);  // both gradients side by side: (chunks, 2C)
  for_row_chunks(rows, 2 * C, partial, [=](int64_t begin, int64_t end, A* sums) {
    for (int64_t r = begin; r < end; ++r) {
      const T *in = x + r * C, *grad = dy + r * C;
      T* out = dx + r * C;
      const A mu = mean[r], scale = rstd[r];
      const auto z = [=](int64_t c) { return (static_cast<A>(in[c]) - mu) * scale; };
      const auto g = [=](int64_t c) { return w[c] * static_cast<A>(grad[c]); };
      const A mean_g = lane_sum<A>(C, g) / static_cast<A>(C);
      const A mean_gz = lane_sum<A>(C, [=](int64_t c) { return g(c) * z(c); }) / static_cast<A>(C);
      vector_for(0, C, [=](int64_t c) {
        sums[c] += static_cast<A>(grad[c]) * z(c);
        sums[C + c] += static_cast<A>(grad[c]);
      });
      vector_for(0, C, [=](int64_t c) {
        out[c] = static_cast<T>(scale * (g(c) - mean_g - z(c) * mean_gz));
      });
    }
  });
  const int64_t stride = 2 * C;
  if (dw != nullptr) fold_chunks(dw, partial, rows, C, stride, add_dw);
  if (db != nullptr) fold_chunks(db, partial + C, rows, C, stride, add_db);
}

#define QUERN_INSTANTIATE(T)                                                                       \
  template void layer_norm_forward(T*, acc_t<T>*, acc_t<T>*, const T*, const acc_t<T>*,            \
                                   const acc_t<T>*, int64_t, int64_t, double, Stream);             \
  template void layer_norm_backward(T*, acc_t<T>*, acc_t<T>*, const T*, const T*, const acc_t<T>*, \
                                    const acc_t<T>*, const acc_t<T>*, int64_t, int64_t, bool,      \
                                    bool, void*, Stream);
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
