// RMSNorm of (rows, C), bound by memory: norm_forward.cuh and norm_backward.cuh without a mean.
#include "kernels/rms_norm.h"

#include "kernels/cuda/norm_backward.cuh"
#include "kernels/cuda/norm_forward.cuh"

namespace quern::kernels::cuda {

template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream stream) {
  norm_forward<false>(sum, y, nullptr, rstd, a, b, w, nullptr, rows, C, eps, stream);
}

template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream stream) {
  norm_backward<false>(dx, dw, nullptr, dy, dsum, x, w, nullptr, rstd, rows, C, add_dw, false,
                       scratch, stream);
}

#define QUERN_INSTANTIATE(TX, TY)                                               \
  template decltype(add_rms_norm_forward<TX, TY>) add_rms_norm_forward<TX, TY>; \
  template decltype(rms_norm_backward<TX, TY>) rms_norm_backward<TX, TY>;
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
