// RMSNorm: y = w x rstd, rstd = 1 / sqrt(mean(x^2) + eps).
#include "kernels/rms_norm.h"

#include "kernels/cpu/norm_rows.h"

namespace quern::kernels::cpu {

template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream) {
  norm_forward<false, TX, TY>(sum, y, nullptr, rstd, a, b, w, nullptr, rows, C, eps);
}

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return partial_sum_bytes(rows, C);
}

template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream) {
  norm_backward<false, TX, TY>(dx, dw, nullptr, dy, dsum, x, w, nullptr, rstd, rows, C, add_dw,
                               false, scratch);
}

#define QUERN_INSTANTIATE(TX, TY)                                               \
  template decltype(add_rms_norm_forward<TX, TY>) add_rms_norm_forward<TX, TY>; \
  template decltype(rms_norm_backward<TX, TY>) rms_norm_backward<TX, TY>;
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
QUERN_INSTANTIATE(double, double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
