// The options that ops read, declared once. Context holds them; ModelOptions (nn/options.h), and
// with it the configuration's [compute] section, contains them.
#pragma once

namespace quern {

// fp32: no tensor cores. tf32: GEMM inputs rounded to TF32. bf16: GEMM inputs and activations are
// BF16; weights, gradients, statistics and the loss stay FP32. fp8: bf16, and the products
// of the blocks' linear layers take FP8 values with scales (autograd/ops/fp8.h).
enum class Precision { fp32, tf32, bf16, fp8 };

// Whether activations, and the weights that products read, are BF16.
constexpr bool has_bf16_activations(Precision precision) {
  return precision == Precision::bf16 || precision == Precision::fp8;
}

// FP32 products. split: by BF16 parts where faster (kernels::Gemm::split). fma: on CUDA cores.
enum class Fp32Products { split, fma };

struct OpOptions {
  Precision precision = Precision::fp32;  // ops read only tf32() from it
  Fp32Products fp32_products = Fp32Products::split;
  bool deterministic = true;  // false: sums may be in any order

  bool tf32() const { return precision == Precision::tf32; }

  friend bool operator==(const OpOptions&, const OpOptions&) = default;
};

}  // namespace quern
