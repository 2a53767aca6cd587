#include "kernels/cuda/gemm/gemm_split.h"

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_split_passes.h"
#include "kernels/cuda/gemm/gemm_split_product.h"

namespace quern::kernels::cuda {

void split_gemm(float* d, const float* a, const float* b, const GemmProblem& p, float alpha,
                float beta, const SplitPlan& plan, void* scratch, Stream stream) {
  QUERN_CHECK(reinterpret_cast<uintptr_t>(scratch) % kSplitAlignment == 0,
              "gemm: the scratch memory is not aligned to ", kSplitAlignment, " bytes");
  auto* const memory = static_cast<uint8_t*>(scratch);
  auto* const a_planes = reinterpret_cast<bfloat16*>(memory);
  auto* const b_planes = reinterpret_cast<bfloat16*>(memory + plane_bytes(layout_a(p)));
  split_planes({a_planes, a, layout_a(p)}, {b_planes, b, layout_b(p)}, stream);
  if (plan.parts == 1) {
    const SplitOutput out{d, p.ldd, p.stride_d, 0, alpha, beta};
    return split_product(out, a_planes, b_planes, p, plan, stream);
  }
  const int64_t pitch = sum_pitch(p), matrix = p.m * pitch;
  auto* const sums =
      reinterpret_cast<float*>(memory + plane_bytes(layout_a(p)) + plane_bytes(layout_b(p)));
  const SplitOutput out{sums, pitch, matrix, p.batch * matrix, 1.0f, 0.0f};
  split_product(out, a_planes, b_planes, p, plan, stream);
  sum_parts(d, sums, layout_d(p), pitch, plan.parts, alpha, beta, stream);
}

}  // namespace quern::kernels::cuda
