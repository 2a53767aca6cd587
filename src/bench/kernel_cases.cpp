#include "bench/kernel_cases.h"

#include <algorithm>
#include <memory>
#include <random>

#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/fp8.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/weighted_sum.h"
#include "autograd/tape.h"
#include "kernels/cross_entropy.h"
#include "kernels/softmax.h"
#include "kernels/swiglu.h"
#include "optim/adamw.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

using Inputs = std::vector<Variable>;
using MakeInputs = std::function<Inputs()>;
using Op = std::function<Variable(const Inputs&)>;
using Cases = std::vector<KernelCase>;

constexpr int64_t kVocabulary = 50304;  // GPT-2's, rounded up
constexpr int64_t kNormRows = 32768, kNormWidth = 2560;
constexpr double kEps = 1e-5;
constexpr double kGeluTanh = 0.79788456;  // sqrt(2 / pi)

int64_t rows_or(int64_t rows, int64_t own) {
  return rows > 0 ? rows : own;
}

// A fixed buffer is kept: gradients are added to it.
void forget_gradients(const Inputs& inputs) {
  for (const Variable& input : inputs) {
    Leaf* leaf = input.leaf_store();
    if (leaf && !leaf->has_buffer) leaf->zero();
  }
}

// Ways to time an op by itself. They cost only the op's own kernels: inputs are leaves with a
// single use, so their gradients are handles to the op's outputs and nothing is added up.
using Timed = KernelWork (*)(const Inputs& inputs, const Op& op);

// Forward without a tape.
KernelWork forward(const Inputs& inputs, const Op& op) {
  return {[=] {
    const NoGrad no_grad;
    op(inputs);
  }};
}

// Backward. The recorded forward before each call is not timed.
KernelWork backward(const Inputs& inputs, const Op& op) {
  const auto y = std::make_shared<Variable>(op(inputs));
  const Tensor dy = normal(y->shape(), 0.0, 1.0, y->dtype());
  const auto record = [=] {
    forget_gradients(inputs);
    *y = op(inputs);
  };
  return {[=] { quern::backward(*y, dy); }, record};
}

KernelWork forward_backward(const Inputs& inputs, const Op& loss) {
  return {[=] {
    forget_gradients(inputs);
    quern::backward(loss(inputs));
  }};
}

KernelVariant variant(const char* name, Timed timed, const MakeInputs& make, const Op& op) {
  return {name, [=] { return timed(make(), op); }};
}

// The naive and the fused variant of an op.
KernelCase twins(const std::vector<int64_t>& shape, DType dtype, int64_t bytes, Timed timed,
                 const MakeInputs& make, const Op& naive, const Op& fused) {
  return {shape,
          dtype,
          bytes,
          {variant("naive", timed, make, naive), variant("fused", timed, make, fused)}};
}

Variable random_leaf(const Shape& shape, DType dtype) {
  return Variable::leaf(normal(shape, 0.0, 1.0, dtype));
}

// A kernel for each step: the maximum, the difference, exp, the sum, the quotient.
Variable naive_softmax(const Variable& x) {
  const Variable e = exp(sub(x, max(x, -1, true).values));
  return div(e, sum(e, -1, true));
}

// By Milakov and Gimelshein: maximum and sum in one pass, the quotient in a second.
KernelWork online_softmax(int64_t N, int64_t M, DType dtype) {
  const Tensor x = normal({N, M}, 0.0, 1.0, dtype), y = Tensor::empty({N, M}, dtype, "softmax");
  return {[=] {
    visit("online softmax", x, [&]<class T>(std::type_identity<T>, auto stream) {
      softmax_online_forward(y.data<T>(), x.data<T>(), N, M, stream);
    });
  }};
}

Cases softmax_cases(int64_t rows) {
  Cases cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [own_rows, width] : {std::pair{16384, 4096}, std::pair{32768, 5000}}) {
      const int64_t N = rows_or(rows, own_rows), M = width;
      const MakeInputs make = [=] { return Inputs{normal({N, M}, 0.0, 1.0, dtype)}; };
      cases.push_back(twins(
          {N, M}, dtype, bytes_of(dtype, 2 * N * M), forward, make,
          [](const Inputs& in) { return naive_softmax(in[0]); },
          [](const Inputs& in) { return softmax(in[0]); }));
      std::vector<KernelVariant>& variants = cases.back().variants;
      variants.insert(variants.begin() + 1,
                      {"online", [=] { return online_softmax(N, M, dtype); }});
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

Cases gelu_cases(int64_t rows) {
  const int64_t N = rows_or(rows, 16384), M = 16384;
  return {twins(
      {N, M}, DType::f32, bytes_of(DType::f32, 2 * N * M), forward,
      [=] {
        return Inputs{normal({N, M}, 0.0, 1.0)};
      },
      [](const Inputs& in) { return naive_gelu(in[0]); },
      [](const Inputs& in) { return gelu_tanh(in[0]); })};
}

// For BF16 activations; the backward is the same kernel.
Cases dropout_cases(int64_t rows) {
  const int64_t N = rows_or(rows, kNormRows), M = kNormWidth;
  return {twins(
      {N, M}, DType::bf16, bytes_of(DType::bf16, 2 * N * M), forward,
      [=] {
        return Inputs{normal({N, M}, 0.0, 1.0, DType::bf16), make_draws(1)};
      },
      [](const Inputs& in) { return naive_dropout(in[0], 0.2, in[1].value(), 0); },
      [](const Inputs& in) { return dropout(in[0], 0.2, in[1].value(), 0); })};
}

Cases weighted_sum_cases(int64_t rows) {
  const int64_t N = rows_or(rows, 16384), M = 4096;
  return {twins(
      {N, M}, DType::f32, bytes_of(DType::f32, N * M + M + N), forward,
      [=] {
        return Inputs{normal({N, M}, 0.0, 1.0), normal({M}, 0.0, 1.0)};
      },
      [](const Inputs& in) { return sum(mul(in[0], in[1]), -1); },
      [](const Inputs& in) { return weighted_sum(in[0], in[1]); })};
}

// A norm of inputs {x, w} or LayerNorm's {x, w, b}, and with `added` the branch last.
struct Norm {
  bool layer, added;
  Variable (*naive)(const Inputs& in);
  Variable (*fused)(const Inputs& in);
};
constexpr Norm kRmsNorm{false, false,
                        [](const Inputs& in) { return naive_rms_norm(in[0], in[1], kEps); },
                        [](const Inputs& in) { return rms_norm(in[0], in[1], kEps); }};
constexpr Norm kLayerNorm{
    true, false, [](const Inputs& in) { return naive_layer_norm(in[0], in[1], in[2], kEps); },
    [](const Inputs& in) { return layer_norm(in[0], in[1], in[2], kEps); }};
constexpr Norm kAddRmsNorm{
    false, true,
    [](const Inputs& in) { return naive_add_rms_norm(in[0], in[2], in[1], kEps).second; },
    [](const Inputs& in) { return add_rms_norm(in[0], in[2], in[1], kEps).second; }};
constexpr Norm kAddLayerNorm{
    true, true,
    [](const Inputs& in) { return naive_add_layer_norm(in[0], in[3], in[1], in[2], kEps).second; },
    [](const Inputs& in) { return add_layer_norm(in[0], in[3], in[1], in[2], kEps).second; }};

// For BF16 activations with FP32 weights, as in a BF16 model. `moved`: tensors of x's size; the
// added variants read stream and branch and write their sum and the normed sum.
Cases norm_cases(int64_t rows, const Norm& norm, int64_t moved, Timed timed) {
  const int64_t N = rows_or(rows, kNormRows);
  const MakeInputs make = [N, layer = norm.layer, added = norm.added] {
    Inputs in{random_leaf({N, kNormWidth}, DType::bf16), Variable::leaf(ones({kNormWidth}))};
    if (layer) in.push_back(Variable::leaf(zeros({kNormWidth})));
    if (added) in.push_back(random_leaf({N, kNormWidth}, DType::bf16));
    return in;
  };
  const int64_t bytes = bytes_of(DType::bf16, moved * N * kNormWidth);
  return {twins({N, kNormWidth}, DType::bf16, bytes, timed, make, norm.naive, norm.fused)};
}

// `halves_moved` counts tensors of (N, F): gate and up are one (N, 2F) tensor.
KernelCase swiglu_case(int64_t rows, int64_t halves_moved, Timed timed) {
  const int64_t N = rows_or(rows, 32768), F = 4096;
  return twins(
      {N, 2 * F}, DType::bf16, bytes_of(DType::bf16, halves_moved * N * F), timed,
      [=] {
        return Inputs{random_leaf({N, 2 * F}, DType::bf16)};
      },
      [](const Inputs& in) { return naive_swiglu(in[0]); },
      [](const Inputs& in) { return swiglu(in[0]); });
}

// Both FP8 copies of a gradient: 2 bytes read and 2 written an element. naive: the transpose is
// stored in BF16 first.
Cases quantize_cases(int64_t rows) {
  const int64_t N = rows_or(rows, kNormRows);
  const auto of = [=](const std::function<void(const Tensor&)>& run) {
    return [=] {
      const Tensor x = normal({N, kNormWidth}, 0.0, 1.0, DType::bf16);
      return KernelWork{[=] { run(x); }};
    };
  };
  using detail::Fp8Operand;
  const auto naive = [](const Tensor& x) {
    detail::quantize(x, Fp8Operand::gradient, {.transpose = false});
    detail::quantize(x.transpose(0, 1).contiguous(), Fp8Operand::gradient, {.transpose = false});
  };
  const auto fused = [](const Tensor& x) { detail::quantize(x, Fp8Operand::gradient, {}); };
  return {{{N, kNormWidth},
           DType::bf16,
           4 * N * kNormWidth,
           {{"naive", of(naive)}, {"fused", of(fused)}}}};
}

// The same of the gradient of SwiGLU's input (N, 2F), from that and the gradient of (N, F). naive:
// it is stored in BF16 first.
Cases quantize_swiglu_cases(int64_t rows) {
  const int64_t N = rows_or(rows, 32768), F = 4096;
  const auto of = [=](const std::function<void(const Tensor&, const Tensor&)>& run) {
    return [=] {
      const Tensor gate_up = normal({N, 2 * F}, 0.0, 1.0, DType::bf16);
      const Tensor dy = normal({N, F}, 0.0, 1.0, DType::bf16);
      return KernelWork{[=] { run(gate_up, dy); }};
    };
  };
  const auto naive = [=](const Tensor& gate_up, const Tensor& dy) {
    const Tensor d = empty_like(gate_up);
    visit("swiglu", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
      swiglu_backward<T>(d.data<T>(), nullptr, gate_up.data<T>(), dy.data<T>(), N, F, stream);
    });
    detail::quantize(d, detail::Fp8Operand::gradient, {});
  };
  const auto fused = [](const Tensor& gate_up, const Tensor& dy) {
    detail::quantize_swiglu_gradient(gate_up, dy, {});
  };
  return {{{N, 2 * F}, DType::bf16, 10 * N * F, {{"naive", of(naive)}, {"fused", of(fused)}}}};
}

// The peer's (B, H, T, D), stored as (B, T, H, D).
Cases rope_cases(int64_t rows) {
  const int64_t tokens = rows_or(rows, 16384), H = 16, D = 128;
  const int64_t T = std::min<int64_t>(1024, tokens), B = tokens / T;
  const MakeInputs make = [=] {
    const RopeTable table = make_rope_table(T, D, 10000.0);
    return Inputs{normal({B, T, H, D}, 0.0, 1.0, DType::bf16), table.cos, table.sin};
  };
  return {twins(
      {B, H, T, D}, DType::bf16, bytes_of(DType::bf16, 2 * B * T * H * D), forward, make,
      [](const Inputs& in) {
        return naive_rope(in[0], {in[1].value(), in[2].value()});
      },
      [](const Inputs& in) {
        return rope(in[0], {in[1].value(), in[2].value()});
      })};
}

// `moved`: both forward and backward read the logits, and the backward writes their gradient.
KernelCase cross_entropy_case(int64_t rows, int64_t moved) {
  const int64_t N = rows_or(rows, 16384), V = kVocabulary;
  return twins(
      {N, V}, DType::bf16, bytes_of(DType::bf16, moved * N * V), forward_backward,
      [=] {
        return Inputs{random_leaf({N, V}, DType::bf16),
                      random_integers({N}, static_cast<int32_t>(V))};
      },
      [](const Inputs& in) { return naive_cross_entropy(in[0], in[1].value()); },
      [](const Inputs& in) { return cross_entropy(in[0], in[1].value()); });
}

// The gradient overwrites the logits. Later calls use the gradient as logits.
KernelWork in_place_cross_entropy(int64_t N, int64_t V) {
  const Tensor logits = normal({N, V}, 0.0, 1.0, DType::bf16);
  const Tensor targets = random_integers({N}, static_cast<int32_t>(V));
  const Tensor row_loss = Tensor::empty({N}, DType::f32, "row loss");
  const Tensor scale = full({}, 1.0 / static_cast<double>(N));
  return {[=] {
    on_device(logits.device(), [&](auto stream) {
      cross_entropy_forward_backward(row_loss.data<float>(), logits.data<bfloat16>(),
                                     targets.data<int32_t>(), scale.data<float>(), N, V,
                                     kIgnoreIndex, {}, stream);
    });
  }};
}

// As in the fused head: the kernel reads the logits and overwrites them with their gradient.
Cases cross_entropy_in_place_cases(int64_t rows) {
  KernelCase one = cross_entropy_case(rows, 2);
  one.variants[1].make = [N = one.shape[0]] { return in_place_cross_entropy(N, kVocabulary); };
  return {one};
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

// A BF16 weight with an FP32 gradient already written by another use of the weight, as with a tied
// head. The kernel adds to the rows of the tokens' ids and leaves the others alone.
Variable weight_with_gradient(int64_t V) {
  const auto store = std::make_shared<Leaf>();
  store->name = "embedding";
  store->grad = zeros({V, kNormWidth});
  store->has_buffer = true;
  store->fresh = false;
  return Variable::leaf(normal({V, kNormWidth}, 0.0, 1.0, DType::bf16), store);
}

// Reads dy; reads and writes each row of the gradient that a token selects.
Cases embedding_backward_cases(int64_t rows) {
  const int64_t N = rows_or(rows, kNormRows);
  const int64_t V = std::min(kVocabulary, 2 * N);
  const std::vector<int32_t> ids = random_ids(N, V);
  const int64_t touched = count_distinct(ids);
  return {twins(
      {N, kNormWidth}, DType::bf16,
      bytes_of(DType::bf16, N * kNormWidth) + bytes_of(DType::f32, 2 * touched * kNormWidth),
      backward,
      [=] {
        return Inputs{weight_with_gradient(V), from_vector(ids, {N})};
      },
      [=](const Inputs& in) {  // torch.gather's gradient: a scatter, then a sum
        const Tensor index = in[1].value().reshape({N, 1}).expand({N, kNormWidth});
        return gather(in[0], 0, index.to(DType::i64));
      },
      [](const Inputs& in) { return embedding(in[0], in[1].value()); })};
}

// The optimizer's kernels are no ops: they are called as AdamW calls them, over one run of
// parameters.
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kAdamEps = 1e-8, kLearningRate = 1e-4, kDecay = 0.1;

// 16384 parameters a row.
int64_t parameter_count(int64_t rows) {
  return rows_or(rows, 32768) * 16384;
}

// One run of parameters in FP32, or in two parts.
struct Parameters {
  Parameters(int64_t n, bool in_parts)
      : fp32{normal({n}, 0.0, 0.02), zeros({n}), zeros({n}), normal({n}, 0.0, 1e-3)},
        range{0, n, 1.0f, static_cast<float>(kDecay)} {
    if (!in_parts) return;
    copies = Tensor::empty({n}, DType::bf16, "copies");
    low = Tensor::empty({n}, DType::u16, "low parts");
    split_weights(copies, low, fp32.param);
  }
  kernels::WeightArrays weights() const {
    if (!copies.defined()) return {fp32.param.data<float>()};
    return {nullptr, copies.data<bfloat16>(), low.data<uint16_t>()};
  }

  AdamWTensors fp32;
  Tensor copies, low;  // undefined in FP32
  kernels::AdamWRange range;
};

template <class Moment>
KernelWork fused_adamw_first_step(int64_t n, bool in_parts) {
  kernels::StepState first;
  first.lr = static_cast<float>(kLearningRate);
  const Tensor state = upload_table(std::vector{first}, {"step state", MemoryCategory::optimizer});
  const Parameters p(n, in_parts);
  const Tensor range = upload_table(std::vector{p.range}, "adamw range"),
               m = p.fp32.m.to(dtype_of<Moment>), v = p.fp32.v.to(dtype_of<Moment>);
  return {[=] {
    const kernels::AdamWHyper hyper{static_cast<float>(kBeta1), static_cast<float>(kBeta2),
                                    static_cast<float>(kAdamEps)};
    on_device(m.device(), [&](auto stream) {
      adamw(p.weights(), m.data<Moment>(), v.data<Moment>(), p.fp32.grad.data<float>(),
            static_cast<const kernels::AdamWRange*>(range.raw_data()), 1, n, hyper,
            static_cast<const kernels::StepState*>(state.raw_data()), stream);
    });
  }};
}

template <class Moment>
KernelWork naive_adamw_first_step(int64_t n, bool in_parts) {
  const Parameters p(n, in_parts);
  AdamWTensors tensors{p.fp32.param, p.fp32.m.to(dtype_of<Moment>), p.fp32.v.to(dtype_of<Moment>),
                       p.fp32.grad};
  return {[=]() mutable {
    if (p.copies.defined()) tensors.param = join_weights(p.copies, p.low);
    const AdamWOptions options{.beta1 = kBeta1, .beta2 = kBeta2, .eps = kAdamEps};
    kernels::StepState first;
    first.lr = static_cast<float>(kLearningRate);
    first.step = 1;
    naive_adamw(tensors, {&p.range, 1}, options, 1.0, first);
    if (p.copies.defined()) split_weights(p.copies, p.low, tensors.param);
  }};
}

KernelWork fused_global_norm(int64_t n) {
  const Tensor state = upload_table(std::vector{kernels::StepState{}},
                                    {"step state", MemoryCategory::optimizer}),
               g = normal({n}, 0.0, 1e-3);
  const int64_t chunks = kernels::norm_chunks(n);
  Tensor partial;
  on_device(g.device(), [&](auto stream) {
    partial = Tensor::empty({chunks * norm_partial_bytes(stream)}, DType::u8,
                            {"gradient norm partial sums", MemoryCategory::workspace});
  });
  return {[=] {
    on_device(g.device(), [&](auto stream) {
      sum_squares(partial.raw_data(), g.data<float>(), n, stream);
      finish_norm(static_cast<kernels::StepState*>(state.raw_data()), partial.raw_data(), chunks,
                  1.0f, 1.0f, nullptr, stream);
    });
  }};
}

// In FP32, and with the weights in two parts as under bf16. Either reads and writes p, m and v and
// reads g: 28 bytes a parameter.
Cases adamw_cases(int64_t rows) {
  const int64_t n = parameter_count(rows);
  Cases cases;
  for (const bool in_parts : {false, true}) {
    cases.push_back({{n},
                     in_parts ? DType::bf16 : DType::f32,
                     n * 28,
                     {{"naive", [=] { return naive_adamw_first_step<float>(n, in_parts); }},
                      {"fused", [=] { return fused_adamw_first_step<float>(n, in_parts); }}}});
  }
  return cases;
}

// With BF16 moments and the weights in two parts.
Cases bf16_moments_cases(int64_t rows) {
  const int64_t n = parameter_count(rows);
  return {{{n},
           DType::bf16,
           n * 20,
           {{"naive", [=] { return naive_adamw_first_step<bfloat16>(n, true); }},
            {"fused", [=] { return fused_adamw_first_step<bfloat16>(n, true); }}}}};
}

Cases global_norm_cases(int64_t rows) {
  const int64_t n = parameter_count(rows);
  const MakeInputs make = [=] { return Inputs{normal({n}, 0.0, 1e-3)}; };
  const Op naive = [](const Inputs& in) { return pow(sum(pow(in[0], 2.0)), 0.5); };
  return {
      {{n},
       DType::f32,
       bytes_of(DType::f32, n),
       {variant("naive", forward, make, naive), {"fused", [=] { return fused_global_norm(n); }}}}};
}

}  // namespace

const std::vector<KernelFamily>& kernel_families() {
  static const std::vector<KernelFamily> kFamilies{
      {"softmax", softmax_cases},
      {"gelu", gelu_cases},
      {"weighted_sum", weighted_sum_cases},
      {"dropout", dropout_cases},
      {"rmsnorm_fwd", [](int64_t rows) { return norm_cases(rows, kRmsNorm, 2, forward); }},
      {"rmsnorm_bwd", [](int64_t rows) { return norm_cases(rows, kRmsNorm, 3, backward); }},
      {"add_rmsnorm_fwd", [](int64_t rows) { return norm_cases(rows, kAddRmsNorm, 4, forward); }},
      {"layernorm_fwd", [](int64_t rows) { return norm_cases(rows, kLayerNorm, 2, forward); }},
      {"layernorm_bwd", [](int64_t rows) { return norm_cases(rows, kLayerNorm, 3, backward); }},
      {"add_layernorm_fwd",
       [](int64_t rows) { return norm_cases(rows, kAddLayerNorm, 4, forward); }},
      {"swiglu_fwd", [](int64_t rows) { return Cases{swiglu_case(rows, 3, forward)}; }},
      {"swiglu_bwd", [](int64_t rows) { return Cases{swiglu_case(rows, 5, backward)}; }},
      {"quantize", quantize_cases},
      {"quantize_swiglu_bwd", quantize_swiglu_cases},
      {"rope_fwd", rope_cases},
      {"cross_entropy_fwd_bwd", [](int64_t rows) { return Cases{cross_entropy_case(rows, 3)}; }},
      {"cross_entropy_in_place", cross_entropy_in_place_cases},
      {"embedding_bwd", embedding_backward_cases},
      {"adamw", adamw_cases},
      {"adamw_bf16_moments", bf16_moments_cases},
      {"global_norm", global_norm_cases},
  };
  return kFamilies;
}

KernelCase copy_case(int64_t rows) {
  const int64_t bytes = rows > 0 ? rows * 32 * 1024 : int64_t{1} << 30;
  const auto make = [=] {
    const Tensor from = Tensor::empty({bytes}, DType::u8, "copy source");
    const Tensor to = Tensor::empty({bytes}, DType::u8, "copy destination");
    fill(from, 1.0);
    return KernelWork{[=] {
      if (!to.device().is_cuda()) return copy(to, from);
      cuda::copy(to.raw_data(), from.raw_data(), bytes, Context::current().cuda_stream());
    }};
  };
  return {{bytes}, DType::u8, 2 * bytes, {{"memcpy", make}}};
}

// Takes about a millisecond. On a GPU, tensor cores with 16-bit operands need the larger product.
KernelCase matmul_case(DType dtype) {
  const bool on_gpu = Context::current().device().is_cuda();
  const int64_t n = !on_gpu ? 512 : dtype == DType::f32 ? 4096 : 8192;
  const MakeInputs make = [=] {
    return Inputs{normal({n, n}, 0.0, 1.0, dtype), normal({n, n}, 0.0, 1.0, dtype)};
  };
  const Op product = [](const Inputs& in) { return matmul(in[0], in[1], false, true); };
  return {{n, n, n}, dtype, bytes_of(dtype, 3 * n * n), {variant("gemm", forward, make, product)}};
}

}  // namespace quern
