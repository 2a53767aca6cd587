// Scratch memory of the backward attention kernels, and which of them takes a shape.
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"
#include "kernels/cuda/attention/mma/attention_mma.h"
#include "kernels/cuda/attention/tf32/attention_tf32.h"

namespace quern::kernels::cuda {

const char* tf32_attention_refusal(const AttentionShape& s) {
  constexpr int64_t kLongest = 1 << 30;  // positions, and sums of two, are ints
  static_assert(kTf32WidestHead == 128);
  if (s.D > kTf32WidestHead) return "tensor cores take FP32 heads of up to 128";
  if (!(s.scale > 0)) return "the scale is not positive, as the kernels of tensor cores need";
  if (s.Tq > kLongest || s.Tk > kLongest) return "tensor cores take up to 2^30 FP32 positions";
  return nullptr;
}

int64_t tf32_attention_backward_scratch(const Tf32Limits& limits, const AttentionShape& s) {
  return Tf32ScratchEnds(s, limits).all;
}

int64_t mma_attention_backward_scratch(int64_t shared_bytes, const AttentionShape& s) {
  return MmaScratchEnds(s, kMmaBackwardTiles[mma_backward_tile(shared_bytes, s)]).all;
}

int64_t hopper_attention_backward_scratch(const AttentionShape& s) {
  if (s.D <= kPortableBackwardHead || !hopper_extents_fit(s)) return 0;
  return BackwardExtents(s, BackwardPlan(s)).bytes();
}

int64_t attention_backward_scratch(const AttentionShape& s, DType dtype, Stream stream) {
  const DeviceTraits gpu = traits_of(stream);
  if (dtype == DType::bf16) {
    return std::max(mma_attention_backward_scratch(gpu.shared_bytes_per_block, s),
                    hopper_attention_backward_scratch(s));
  }
  if (tf32_attention_refusal(s) == nullptr) {
    return tf32_attention_backward_scratch(limits_of(gpu), s);
  }
  return static_cast<int64_t>(sizeof(float)) * s.B * s.H * s.Tq;  // delta
}

}  // namespace quern::kernels::cuda
