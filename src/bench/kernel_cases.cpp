#include "bench/kernel_cases.h"

#include <algorithm>
#include <memory>
#include <random>

#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/weighted_sum.h"
#include "bench/kernel_calls.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr double kEps = 1e-5;
constexpr double kGeluTanh = 0.79788456;  // sqrt(2 / pi)

Variable random_leaf(const Shape& shape, DType dtype) {
  return Variable::leaf(normal(shape, 0.0, 1.0, dtype));
}

// Row by row: the maximum, the difference, exp, the sum, the quotient.
Variable naive_softmax(const Variable& x) {
  const Variable e = exp(sub(x, max(x, -1, true).values));
  return div(e, sum(e, -1, true));
}

std::vector<KernelCase> softmax_cases(int64_t rows) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [own_rows, M] : {std::pair{16384, 4096}, std::pair{32768, 5000}}) {
      const int64_t N = rows > 0 ? rows : own_rows;
      const MakeInputs make = [=, M = M] { return Inputs{normal({N, M}, 0.0, 1.0, dtype)}; };
      cases.push_back(
          {{N, M},
           dtype,
           bytes_of(dtype, 2 * N * M),
           {forward("naive", make, [](const Inputs& in) { return naive_softmax(in[0]); }),
            online_softmax_variant(N, M, dtype),
            forward("fused", make, [](const Inputs& in) { return softmax(in[0]); })}});
    }
  }
  return cases;
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
Variable naive_gelu(const Variable& x) {
  const Variable cube = scale(mul(mul(x, x), x), 0.044715);
  const Variable t = tanh(scale(add(x, cube), kGeluTanh));
  return mul(scale(x, 0.5), scale(t, 1.0, 1.0));
}

std::vector<KernelCase> gelu_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : 16384, M = 16384;
  const MakeInputs make = [=] { return Inputs{normal({N, M}, 0.0, 1.0)}; };
  return {{{N, M},
           DType::f32,
           bytes_of(DType::f32, 2 * N * M),
           {forward("naive", make, [](const Inputs& in) { return naive_gelu(in[0]); }),
            forward("fused", make, [](const Inputs& in) { return gelu_tanh(in[0]); })}}};
}

constexpr int64_t kNormRows = 32768, kNormWidth = 2560;

// Of BF16 activations; the backward is the same kernel.
std::vector<KernelCase> dropout_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : kNormRows, M = kNormWidth;
  const MakeInputs make = [=] {
    return Inputs{normal({N, M}, 0.0, 1.0, DType::bf16), make_draws(1)};
  };
  const Op naive = [](const Inputs& in) { return naive_dropout(in[0], 0.2, in[1].value(), 0); };
  const Op fused = [](const Inputs& in) { return dropout(in[0], 0.2, in[1].value(), 0); };
  return {{{N, M},
           DType::bf16,
           bytes_of(DType::bf16, 2 * N * M),
           {forward("naive", make, naive), forward("fused", make, fused)}}};
}

std::vector<KernelCase> weighted_sum_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : 16384, M = 4096;
  const MakeInputs make = [=] { return Inputs{normal({N, M}, 0.0, 1.0), normal({M}, 0.0, 1.0)}; };
  const Op naive = [](const Inputs& in) { return sum(mul(in[0], in[1]), -1); };
  const Op fused = [](const Inputs& in) { return weighted_sum(in[0], in[1]); };
  return {{{N, M},
           DType::f32,
           bytes_of(DType::f32, N * M + M + N),
           {forward("naive", make, naive), forward("fused", make, fused)}}};
}

// RMSNorm of {x, w} or LayerNorm of {x, w, b}; of the sum of x and what stands last in add_*.
template <bool kLayer>
struct NormOps {
  static Variable naive(const Inputs& in) {
    if constexpr (kLayer) return naive_layer_norm(in[0], in[1], in[2], kEps);
    return naive_rms_norm(in[0], in[1], kEps);
  }
  static Variable fused(const Inputs& in) {
    if constexpr (kLayer) return layer_norm(in[0], in[1], in[2], kEps);
    return rms_norm(in[0], in[1], kEps);
  }
  static Variable add_naive(const Inputs& in) {
    if constexpr (kLayer) return naive_add_layer_norm(in[0], in[3], in[1], in[2], kEps).second;
    return naive_add_rms_norm(in[0], in[2], in[1], kEps).second;
  }
  static Variable add_fused(const Inputs& in) {
    if constexpr (kLayer) return add_layer_norm(in[0], in[3], in[1], in[2], kEps).second;
    return add_rms_norm(in[0], in[2], in[1], kEps).second;
  }

  // BF16 activations with FP32 weights, as in a BF16 model.
  static Inputs inputs(int64_t N) {
    Inputs in{random_leaf({N, kNormWidth}, DType::bf16), Variable::leaf(ones({kNormWidth}))};
    if (kLayer) in.push_back(Variable::leaf(zeros({kNormWidth})));
    return in;
  }
};

KernelCase norm_case(int64_t rows, int64_t tensors_moved) {
  const int64_t N = rows > 0 ? rows : kNormRows;
  return {{N, kNormWidth}, DType::bf16, bytes_of(DType::bf16, tensors_moved * N * kNormWidth), {}};
}

template <bool kLayer>
std::vector<KernelCase> norm_forward_cases(int64_t rows) {
  using Ops = NormOps<kLayer>;
  KernelCase norm = norm_case(rows, 2);
  const MakeInputs make = [N = norm.shape[0]] { return Ops::inputs(N); };
  norm.variants = {forward("naive", make, Ops::naive), forward("fused", make, Ops::fused)};
  return {norm};
}

template <bool kLayer>
std::vector<KernelCase> norm_backward_cases(int64_t rows) {
  using Ops = NormOps<kLayer>;
  KernelCase norm = norm_case(rows, 3);
  const MakeInputs make = [N = norm.shape[0]] { return Ops::inputs(N); };
  norm.variants = {backward("naive", make, Ops::naive), backward("fused", make, Ops::fused)};
  return {norm};
}

// Reads the stream and the branch, writes their sum and the normed sum.
template <bool kLayer>
std::vector<KernelCase> add_norm_cases(int64_t rows) {
  using Ops = NormOps<kLayer>;
  KernelCase norm = norm_case(rows, 4);
  const MakeInputs make = [N = norm.shape[0]] {
    Inputs in = Ops::inputs(N);
    in.push_back(random_leaf({N, kNormWidth}, DType::bf16));
    return in;
  };
  norm.variants = {forward("naive", make, Ops::add_naive), forward("fused", make, Ops::add_fused)};
  return {norm};
}

Variable naive_gated(const Inputs& in) {
  return naive_swiglu(in[0]);
}

Variable fused_gated(const Inputs& in) {
  return swiglu(in[0]);
}

// Elements moved in units of (N, F): gate and up are one (N, 2F) tensor.
KernelCase swiglu_case(int64_t rows, int64_t halves_moved) {
  const int64_t N = rows > 0 ? rows : 32768, F = 4096;
  return {{N, 2 * F}, DType::bf16, bytes_of(DType::bf16, halves_moved * N * F), {}};
}

MakeInputs swiglu_inputs(const KernelCase& of) {
  return [N = of.shape[0], width = of.shape[1]] {
    return Inputs{random_leaf({N, width}, DType::bf16)};
  };
}

std::vector<KernelCase> swiglu_forward_cases(int64_t rows) {
  KernelCase gated = swiglu_case(rows, 3);
  const MakeInputs make = swiglu_inputs(gated);
  gated.variants = {forward("naive", make, naive_gated), forward("fused", make, fused_gated)};
  return {gated};
}

std::vector<KernelCase> swiglu_backward_cases(int64_t rows) {
  KernelCase gated = swiglu_case(rows, 5);
  const MakeInputs make = swiglu_inputs(gated);
  gated.variants = {backward("naive", make, naive_gated), backward("fused", make, fused_gated)};
  return {gated};
}

// The peer's (B, H, T, D), held as (B, T, H, D).
std::vector<KernelCase> rope_cases(int64_t rows) {
  const int64_t tokens = rows > 0 ? rows : 16384, H = 16, D = 128;
  const int64_t T = std::min<int64_t>(1024, tokens), B = tokens / T;
  const MakeInputs make = [=] {
    const RopeTable table = make_rope_table(T, D, 10000.0);
    return Inputs{normal({B, T, H, D}, 0.0, 1.0, DType::bf16), table.cos, table.sin};
  };
  const Op naive = [](const Inputs& in) {
    return naive_rope(in[0], {in[1].value(), in[2].value()});
  };
  const Op fused = [](const Inputs& in) { return rope(in[0], {in[1].value(), in[2].value()}); };
  return {{{B, H, T, D},
           DType::bf16,
           bytes_of(DType::bf16, 2 * B * T * H * D),
           {forward("naive", make, naive), forward("fused", make, fused)}}};
}

// The logits are read by the forward and by the backward, which writes their gradient.
std::vector<KernelCase> cross_entropy_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : 16384;
  const MakeInputs make = [=] {
    return Inputs{random_leaf({N, kVocabulary}, DType::bf16),
                  random_integers({N}, static_cast<int32_t>(kVocabulary))};
  };
  const Op naive = [](const Inputs& in) { return naive_cross_entropy(in[0], in[1].value()); };
  const Op fused = [](const Inputs& in) { return cross_entropy(in[0], in[1].value()); };
  return {{{N, kVocabulary},
           DType::bf16,
           bytes_of(DType::bf16, 3 * N * kVocabulary),
           {forward_backward("naive", make, naive), forward_backward("fused", make, fused)}}};
}

std::vector<int32_t> random_ids(int64_t n, int64_t V) {
  std::mt19937 generator(1);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(generator() % V);
  return ids;
}

int64_t count_distinct(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  return std::unique(ids.begin(), ids.end()) - ids.begin();
}

// A BF16 weight with an FP32 gradient that other uses of the weight have already written, as a tied
// head leaves it: the kernel adds to the rows that the tokens name and leaves the others alone.
Variable weight_with_gradient(int64_t V) {
  const auto store = std::make_shared<Leaf>();
  store->name = "embedding";
  store->grad = zeros({V, kNormWidth});
  store->has_buffer = true;
  store->fresh = false;
  return Variable::leaf(normal({V, kNormWidth}, 0.0, 1.0, DType::bf16), store);
}

// dy is read, and each row of the gradient that a token names is read and written.
std::vector<KernelCase> embedding_backward_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : kNormRows;
  const int64_t V = std::min(kVocabulary, 2 * N);
  const std::vector<int32_t> ids = random_ids(N, V);
  const int64_t touched = count_distinct(ids);
  const MakeInputs make = [=] { return Inputs{weight_with_gradient(V), from_vector(ids, {N})}; };
  const Op naive = [=](const Inputs& in) {  // torch.gather's gradient: a scatter, then a sum
    const Tensor index = in[1].value().reshape({N, 1}).expand({N, kNormWidth});
    return gather(in[0], 0, index.to(DType::i64));
  };
  const Op fused = [](const Inputs& in) { return embedding(in[0], in[1].value()); };
  return {{{N, kNormWidth},
           DType::bf16,
           bytes_of(DType::bf16, N * kNormWidth) + bytes_of(DType::f32, 2 * touched * kNormWidth),
           {backward("naive", make, naive), backward("fused", make, fused)}}};
}

}  // namespace

const std::vector<KernelFamily>& kernel_families() {
  static const std::vector<KernelFamily> kFamilies{
      {"softmax", softmax_cases},
      {"gelu", gelu_cases},
      {"weighted_sum", weighted_sum_cases},
      {"dropout", dropout_cases},
      {"rmsnorm_fwd", norm_forward_cases<false>},
      {"rmsnorm_bwd", norm_backward_cases<false>},
      {"add_rmsnorm_fwd", add_norm_cases<false>},
      {"layernorm_fwd", norm_forward_cases<true>},
      {"layernorm_bwd", norm_backward_cases<true>},
      {"add_layernorm_fwd", add_norm_cases<true>},
      {"swiglu_fwd", swiglu_forward_cases},
      {"swiglu_bwd", swiglu_backward_cases},
      {"rope_fwd", rope_cases},
      {"cross_entropy_fwd_bwd", cross_entropy_cases},
      {"cross_entropy_in_place", cross_entropy_in_place_cases},
      {"embedding_bwd", embedding_backward_cases},
      {"adamw", adamw_cases},
      {"global_norm", global_norm_cases},
  };
  return kFamilies;
}

}  // namespace quern
