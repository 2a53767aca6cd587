// Flash attention: softmax(scale Q K^T) V in tiles with an online softmax, without storing the
// scores. Forward: Dao, 2023 (FlashAttention-2), algorithm 1. Backward: algorithm 2, with P
// recomputed from logsumexp. T: float, bfloat16, and on the CPU double. D: any multiple of 8 up to
// 256. Query head h reads kv head h / (H / Hk). Causal: query i sees key j when j <= i + Tk - Tq. A
// query that sees no key gives O = 0 and logsumexp = -inf.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct AttentionShape {
  int64_t B = 0, Tq = 0, Tk = 0, H = 0, Hk = 0, D = 0;
  bool causal = true;
  double scale = 0.0;         // usually 1 / sqrt(D)
  bool deterministic = true;  // false: the backward may add in any order, where that is faster
  bool tf32 = false;          // products of float inputs may round them to TF32
  bool portable = false;      // only kernels that run on every GPU since compute capability 8.0
  int64_t q_strides[3] = {}, k_strides[3] = {}, v_strides[3] = {}, o_strides[3] = {};
  int64_t dq_strides[3] = {}, dk_strides[3] = {}, dv_strides[3] = {}, do_strides[3] = {};
};

// cos and sin of rope.h, (at least Tq and Tk positions, D / 2), or null. If q and k were rotated by
// them, the backward gives the gradients before the rotation.
template <class A>
struct RotaryTable {
  const A* cos = nullptr;
  const A* sin = nullptr;
};

// Throws if the flash kernels do not support the shape; the error names the argument.
void check_attention(const AttentionShape& s);

namespace cpu {
// o (B, Tq, H, D); lse (B, H, Tq) packed. Strides (elements along batch, time, head; D contiguous)
// in `s`.
template <class T>
void attention_forward(T* o, acc_t<T>* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& s, Stream stream);

int64_t attention_backward_scratch(const AttentionShape& s, DType dtype, Stream stream);  // bytes

// Each tensor but lse has its own strides in `s`.
template <class T>
void attention_backward(T* dq, T* dk, T* dv, const T* d_o, const T* o, const acc_t<T>* lse,
                        const T* q, const T* k, const T* v, const AttentionShape& s,
                        const RotaryTable<acc_t<T>>& rotary, void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void attention_forward(T* o, acc_t<T>* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& s, Stream stream);
int64_t attention_backward_scratch(const AttentionShape& s, DType dtype, Stream stream);  // bytes
template <class T>
void attention_backward(T* dq, T* dk, T* dv, const T* d_o, const T* o, const acc_t<T>* lse,
                        const T* q, const T* k, const T* v, const AttentionShape& s,
                        const RotaryTable<acc_t<T>>& rotary, void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
