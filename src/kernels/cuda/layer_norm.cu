// LayerNorm of (rows, C), bound by memory: norm_forward.cuh and norm_backward.cuh with a mean. The
// variance is taken about the mean, from the registers that hold the row.
#include "kernels/layer_norm.h"

#include "kernels/cuda/norm_backward.cuh"
#include "kernels/cuda/norm_forward.cuh"

namespace quern::kernels::cuda {

template <class TX, class TY>
void add_layer_norm_forward(TX* sum, TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x,
                            const TY* branch, const acc_t<TY>* w, const acc_t<TY>* b, int64_t rows,
                            int64_t C, double eps, Stream stream) {
  norm_forward<true>(sum, y, mean, rstd, x, branch, w, b, rows, C, eps, stream);
}

template <class TX, class TY>
void layer_norm_backward(TX* dx, acc_t<TY>* dw, acc_t<TY>* db, const TY* dy, const TX* dsum,
                         const TX* x, const acc_t<TY>* w, const acc_t<TY>* mean,
                         const acc_t<TY>* rstd, int64_t rows, int64_t C, bool add_dw, bool add_db,
                         void* scratch, Stream stream) {
  norm_backward<true>(dx, dw, db, dy, dsum, x, w, mean, rstd, rows, C, add_dw, add_db, scratch,
                      stream);
}

#define QUERN_INSTANTIATE(TX, TY)                                                   \
  template decltype(add_layer_norm_forward<TX, TY>) add_layer_norm_forward<TX, TY>; \
  template decltype(layer_norm_backward<TX, TY>) layer_norm_backward<TX, TY>;
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
