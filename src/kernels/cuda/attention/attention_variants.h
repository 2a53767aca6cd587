// The flash attention kernels. attention.cu and attention_backward.cu choose one. BF16: Hopper's
// kernel if the binary has its code for this GPU and it takes the call, else the portable one.
// FP32: tensor cores if they support the shape, else CUDA cores. Arguments have the meaning of
// kernels/attention.h; each kernel asks for its own bytes of scratch. Portable kernels take a limit
// of shared memory per block: an op passes the device's, a test a smaller one to run a laptop GPU's
// tiles.
#pragma once

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_tiles.h"

namespace quern::kernels::cuda {

template <class T>
struct AttentionForward {
  T* o;
  float* lse;
  const T *q, *k, *v;
};
template <class T>
struct AttentionBackward {
  T *dq, *dk, *dv;
  const T *d_o, *o;
  const float* lse;
  const T *q, *k, *v;
};

// wgmma and TMA: compute capability 9.0, any D but the narrowest, rows that TMA can address
// (16-byte aligned base pointers and strides). Made for D of 64, 80, 96, 128, 192 and 256; others
// are padded. Up to kPortableForwardHead and kPortableBackwardHead the portable kernels are faster.
// The refusal functions return why a kernel does not take a call; null: it does.
const char* hopper_attention_refusal(const AttentionForward<bfloat16>& x, const AttentionShape& s);
void hopper_attention_forward(const AttentionForward<bfloat16>& x, const AttentionShape& s,
                              Stream stream);
const char* hopper_attention_backward_refusal(const AttentionBackward<bfloat16>& x,
                                              const AttentionShape& s);
void hopper_attention_backward(const AttentionBackward<bfloat16>& x, const AttentionShape& s,
                               const RotaryTable<float>& rotary, void* scratch, Stream stream);
int64_t hopper_attention_backward_scratch(const AttentionShape& s);  // bytes; 0: never used
// An array: its address, which tells it apart, is the same in all files.
inline constexpr char kPortableIsFaster[] = "the portable kernel is faster with such heads";
inline constexpr int64_t kPortableForwardHead = 32, kPortableBackwardHead = 16;
inline constexpr const char* kHopperExtents =
    "the lengths or the number of heads are beyond those of Hopper's own kernel";
inline constexpr const char* kHopperRows =
    "rows of q, k, v, the output or a gradient are not aligned to 16 bytes, as Hopper's own kernel "
    "needs";
inline constexpr const char* kNoHopper = "the GPU or this build cannot run Hopper's own kernel";

// mma.sync and cp.async: compute capability 8.0 and later, any D, any strides.
void mma_attention_forward(int64_t shared_bytes, const AttentionForward<bfloat16>& x,
                           const AttentionShape& s, Stream stream);
int64_t mma_attention_backward_scratch(int64_t shared_bytes, const AttentionShape& s);
void mma_attention_backward(int64_t shared_bytes, const AttentionBackward<bfloat16>& x,
                            const AttentionShape& s, void* scratch, Stream stream);

// FP32 tensors on tensor cores: mma.sync of TF32, compute capability 8.0 and later, D up to 128,
// any strides, a positive scale. s.tf32: one product of inputs rounded to TF32. Otherwise three of
// high and low parts, with the error of FP32.
const char* tf32_attention_refusal(const AttentionShape& s);
void tf32_attention_forward(const Tf32Limits& limits, const AttentionForward<float>& x,
                            const AttentionShape& s, Stream stream);
int64_t tf32_attention_backward_scratch(const Tf32Limits& limits, const AttentionShape& s);
void tf32_attention_backward(const Tf32Limits& limits, const AttentionBackward<float>& x,
                             const AttentionShape& s, void* scratch, Stream stream);

// FP32 tensors on CUDA cores. scratch: delta (B, H, Tq).
void scalar_attention_forward(int64_t shared_bytes, const AttentionForward<float>& x,
                              const AttentionShape& s, Stream stream);
void scalar_attention_backward(int64_t shared_bytes, const AttentionBackward<float>& x,
                               const AttentionShape& s, void* scratch, Stream stream);

}  // namespace quern::kernels::cuda
