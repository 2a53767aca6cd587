// The flash attention kernels that use tensor cores. attention.cu and attention_backward.cu choose.
// BF16: Hopper's kernel where the binary has its code for this GPU and it has the head size, else
// the portable one. FP32: the kernel below where it takes the shape, else CUDA cores. Arguments
// have the meaning of kernels/attention.h; each kernel asks for its own bytes of scratch.
#pragma once

#include "base/half.h"
#include "kernels/attention.h"

namespace quern::kernels::cuda {

// wgmma and TMA: compute capability 9.0, D of 64, 80 or 128, rows that TMA can address (16-byte
// aligned base pointers and strides).
bool hopper_attention_takes(const AttentionShape& s, const bfloat16* q, const bfloat16* k,
                            const bfloat16* v, const bfloat16* o);
void hopper_attention_forward(bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
                              const bfloat16* v, const AttentionShape& s, Stream stream);
bool hopper_attention_backward_takes(const AttentionShape& s, const bfloat16* dq,
                                     const bfloat16* dk, const bfloat16* dv, const bfloat16* d_o,
                                     const bfloat16* q, const bfloat16* k, const bfloat16* v);
void hopper_attention_backward(bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
                               const bfloat16* o, const float* lse, const bfloat16* q,
                               const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                               const RotaryTable<float>& rotary, void* scratch, Stream stream);
int64_t hopper_attention_backward_scratch(const AttentionShape& s);  // bytes; 0 for other D

// mma.sync and cp.async: compute capability 8.0 and later, any D, any strides.
void mma_attention_forward(bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
                           const bfloat16* v, const AttentionShape& s, Stream stream);
void mma_attention_backward(bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
                            const bfloat16* o, const float* lse, const bfloat16* q,
                            const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                            void* scratch, Stream stream);

// FP32 tensors on tensor cores: mma.sync of TF32, compute capability 8.0 and later, D up to 128,
// any strides, a positive scale. s.tf32: one product of inputs rounded to TF32. Otherwise three of
// high and low parts, with the error of FP32.
bool tf32_attention_takes(const AttentionShape& s);
void tf32_attention_forward(float* o, float* lse, const float* q, const float* k, const float* v,
                            const AttentionShape& s, Stream stream);
void tf32_attention_backward(float* dq, float* dk, float* dv, const float* d_o, const float* o,
                             const float* lse, const float* q, const float* k, const float* v,
                             const AttentionShape& s, void* scratch, Stream stream);

}  // namespace quern::kernels::cuda
