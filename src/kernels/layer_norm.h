// LayerNorm (Ba et al., 2016): y = w (x - mean) / sqrt(var + eps) + b, over the last dimension C.
// The variance is the mean squared distance from the mean, never E[x^2] - E[x]^2. Types and
// instances as RMSNorm's (rms_norm.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
// The residual add in the same pass: sum = x + branch (in acc_t, then rounded to TX) and y =
// layer_norm(sum). With null branch and sum, y = layer_norm(x). Also writes mean and rstd (rows),
// which the backward needs.
template <class TX, class TY>
void add_layer_norm_forward(TX* sum, TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x,
                            const TY* branch, const acc_t<TY>* w, const acc_t<TY>* b, int64_t rows,
                            int64_t C, double eps, Stream stream);

int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes

// dx from dy, plus dsum unless it is null; dx may be dsum. dw and db (C each, += when `add_dw` and
// `add_db`) may be null. With z = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - z mean(g
// z)), dw = sum of dy z, db = sum of dy.
template <class TX, class TY>
void layer_norm_backward(TX* dx, acc_t<TY>* dw, acc_t<TY>* db, const TY* dy, const TX* dsum,
                         const TX* x, const acc_t<TY>* w, const acc_t<TY>* mean,
                         const acc_t<TY>* rstd, int64_t rows, int64_t C, bool add_dw, bool add_db,
                         void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class TX, class TY>
void add_layer_norm_forward(TX* sum, TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x,
                            const TY* branch, const acc_t<TY>* w, const acc_t<TY>* b, int64_t rows,
                            int64_t C, double eps, Stream stream);
int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes
template <class TX, class TY>
void layer_norm_backward(TX* dx, acc_t<TY>* dw, acc_t<TY>* db, const TY* dy, const TX* dsum,
                         const TX* x, const acc_t<TY>* w, const acc_t<TY>* mean,
                         const acc_t<TY>* rstd, int64_t rows, int64_t C, bool add_dw, bool add_db,
                         void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
