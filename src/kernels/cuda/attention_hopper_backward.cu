// Flash attention for Hopper, backward: what it takes, and its two kernels one after the other.
// Each writes every element of its outputs once, from one block, in one order of summation.
#include "kernels/cuda/attention_hopper_backward.cuh"
#include "kernels/cuda/attention_variants.h"

namespace quern::kernels::cuda {

bool hopper_attention_backward_takes(const AttentionShape& s, const bfloat16* dq,
                                     const bfloat16* dk, const bfloat16* dv, const bfloat16* d_o,
                                     const bfloat16* q, const bfloat16* k, const bfloat16* v) {
  return hopper_backward_tile(s.D) >= 0 && hopper_extents_fit(s) &&
         tma_takes(q, s.q_strides, s.B, s.Tq, s.H, s.D) &&
         tma_takes(k, s.k_strides, s.B, s.Tk, s.Hk, s.D) &&
         tma_takes(v, s.v_strides, s.B, s.Tk, s.Hk, s.D) &&
         tma_takes(d_o, s.do_strides, s.B, s.Tq, s.H, s.D) && rows_aligned(dq, s.dq_strides) &&
         rows_aligned(dk, s.dk_strides) && rows_aligned(dv, s.dv_strides) && hopper_dq_runs(s.D) &&
         hopper_dkdv_runs(s.D);
}

void hopper_attention_backward(bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
                               const bfloat16* o, const float* lse, const bfloat16* q,
                               const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                               float* delta, Stream stream) {
  check_attention(s);
  hopper_attention_dq(dq, delta, d_o, o, lse, q, k, v, s, stream);  // and delta
  hopper_attention_dkdv(dk, dv, d_o, lse, delta, q, k, v, s, stream);
}

}  // namespace quern::kernels::cuda
