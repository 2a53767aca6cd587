// LayerNorm: y = w z + b with z = (x - mean) rstd.
#include "kernels/layer_norm.h"

#include "kernels/cpu/norm_rows.h"

namespace quern::kernels::cpu {

template <class TX, class TY>
void add_layer_norm_forward(TX* sum, TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x,
                            const TY* branch, const acc_t<TY>* w, const acc_t<TY>* b, int64_t rows,
                            int64_t C, double eps, Stream) {
  norm_forward<true, TX, TY>(sum, y, mean, rstd, x, branch, w, b, rows, C, eps);
}

int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return 2 * partial_sum_bytes(rows, C);
}

template <class TX, class TY>
void layer_norm_backward(TX* dx, acc_t<TY>* dw, acc_t<TY>* db, const TY* dy, const TX* dsum,
                         const TX* x, const acc_t<TY>* w, const acc_t<TY>* mean,
                         const acc_t<TY>* rstd, int64_t rows, int64_t C, bool add_dw, bool add_db,
                         void* scratch, Stream) {
  norm_backward<true, TX, TY>(dx, dw, db, dy, dsum, x, w, mean, rstd, rows, C, add_dw, add_db,
                              scratch);
}

#define QUERN_INSTANTIATE(TX, TY)                                                   \
  template decltype(add_layer_norm_forward<TX, TY>) add_layer_norm_forward<TX, TY>; \
  template decltype(layer_norm_backward<TX, TY>) layer_norm_backward<TX, TY>;
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
QUERN_INSTANTIATE(double, double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
