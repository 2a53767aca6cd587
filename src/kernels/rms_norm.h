// RMSNorm (Zhang and Sennrich, 2019): y = w x / sqrt(mean(x^2) + eps), over the last dimension C.
// Statistics and weights are acc_t<TY>. TX is the residual stream's type, TY the activations'.
// Instances (TX, TY): (float, float), (bfloat16, bfloat16), (float, bfloat16), and on the CPU
// (double, double).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
// The residual add in the same pass: sum = a + b (in acc_t, then rounded to TX), y = rms_norm(sum).
// With null b and sum, y = rms_norm(a). Also writes rstd (rows), which the backward needs.
template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream stream);

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes

// dx from dy, plus dsum unless it is null (the gradient that reaches x by the residual path); dx
// may be dsum. dw (C, += when `add_dw`) may be null. With z = x rstd: dx = rstd (w dy - z mean(w dy
// z)).
template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream stream);
int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes
template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
