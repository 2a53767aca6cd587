// Mean cross-entropy of logits (N, V) against targets (N), skipping targets equal to ignore_index.
// T (logits): float, bfloat16, and on the CPU double; losses and logsumexp are acc_t<T>.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/host_device.h"
#include "base/stream.h"

namespace quern::kernels {

// The z-loss of PaLM (Chowdhery et al., 2022, section 5) adds weight lse^2 per row, which keeps
// logits from drifting. rows[i] receives lse[i]^2, 0 where ignored; null: no z-loss.
template <class A>
struct ZLoss {
  A* rows = nullptr;
  A weight = 0;

  // The gradient of a row's loss by its logits is factor(lse) softmax - onehot.
  QUERN_HD A factor(A lse) const { return rows == nullptr ? A(1) : A(1) + A(2) * weight * lse; }
};

namespace cpu {
// row_loss[i] = logsumexp(logits[i]) - logits[i, targets[i]], 0 where ignored; lse[i] the
// logsumexp. A target that is neither in [0, V) nor ignore_index throws on the CPU; on CUDA its
// loss is NaN.
template <class T>
void cross_entropy_forward(acc_t<T>* row_loss, acc_t<T>* lse, const T* logits,
                           const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index,
                           Stream stream);

// loss[0] = sum of row_loss[0..n) / count, inverse_count[0] = 1 / count; both are 0 when count is
// 0. count is the number of targets that are not ignored. Sums in a fixed order. A: float, and on
// the CPU double.
template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream stream);

// dlogits[i, v] = (exp(logits[i, v] - lse[i]) - [v == targets[i]]) * scale[0] * dloss[0], 0 where
// ignored; dlogits may be logits. scale and dloss are device scalars (dloss may be null: 1).
template <class T>
void cross_entropy_backward(T* dlogits, const T* logits, const acc_t<T>* lse,
                            const int32_t* targets, const acc_t<T>* scale, const acc_t<T>* dloss,
                            int64_t N, int64_t V, int32_t ignore_index, Stream stream);

// scale[0] = loss_scale / count, or 0 when count is 0: the factor from (softmax - onehot) to the
// gradient of loss_scale times the mean loss. A: float, and on the CPU double.
template <class A>
void cross_entropy_scale(A* scale, const int32_t* targets, int64_t n, double loss_scale,
                         int32_t ignore_index, Stream stream);

// Forward and backward in one pass: row_loss as above, and the gradient overwrites the logits,
// (z.factor(lse[i]) softmax(logits)[i, v] - [v == targets[i]]) * scale[0], 0 where ignored. scale
// is a device scalar.
template <class T>
void cross_entropy_forward_backward(acc_t<T>* row_loss, T* logits, const int32_t* targets,
                                    const acc_t<T>* scale, int64_t N, int64_t V,
                                    int32_t ignore_index, ZLoss<acc_t<T>> z, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void cross_entropy_forward(acc_t<T>* row_loss, acc_t<T>* lse, const T* logits,
                           const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index,
                           Stream stream);
template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream stream);
template <class T>
void cross_entropy_backward(T* dlogits, const T* logits, const acc_t<T>* lse,
                            const int32_t* targets, const acc_t<T>* scale, const acc_t<T>* dloss,
                            int64_t N, int64_t V, int32_t ignore_index, Stream stream);
template <class A>
void cross_entropy_scale(A* scale, const int32_t* targets, int64_t n, double loss_scale,
                         int32_t ignore_index, Stream stream);
template <class T>
void cross_entropy_forward_backward(acc_t<T>* row_loss, T* logits, const int32_t* targets,
                                    const acc_t<T>* scale, int64_t N, int64_t V,
                                    int32_t ignore_index, ZLoss<acc_t<T>> z, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
