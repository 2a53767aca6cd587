// Kernels that are no ops: the optimizer's, called as AdamW calls them over one run of parameters;
// the cross-entropy that the fused head calls; softmax in two passes; the copy and the product that
// are the roofline's ceilings.
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/kernel_calls.h"
#include "kernels/cross_entropy.h"
#include "kernels/softmax.h"
#include "optim/adamw_naive.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kAdamEps = 1e-8, kLearningRate = 1e-4, kDecay = 0.1;

int64_t parameter_count(int64_t rows) {
  return (rows > 0 ? rows : 32768) * 16384;
}

// A host struct as bytes on the device.
template <class T>
Tensor upload(T value, MemoryTag tag) {
  const Shape shape{static_cast<int64_t>(sizeof(T))};
  Tensor out = Tensor::empty(shape, DType::u8, tag);
  copy(out, Tensor::borrow(&value, shape, DType::u8, kCpu));
  return out;
}

// One run of parameters, and their BF16 copies or none.
struct Parameters {
  Parameters(int64_t n, bool with_copy)
      : fp32{normal({n}, 0.0, 0.02), zeros({n}), zeros({n}), normal({n}, 0.0, 1e-3)},
        copies(with_copy ? Tensor::empty({n}, DType::bf16, "copies") : Tensor()),
        range{0, n, 1.0f, static_cast<float>(kDecay)} {}

  AdamWTensors fp32;
  Tensor copies;
  kernels::AdamWRange range;
};

KernelWork fused_adamw_first_step(int64_t n, bool with_copy) {
  kernels::StepState first;
  first.lr = static_cast<float>(kLearningRate);
  const Tensor state = upload(first, {"step state", MemoryCategory::optimizer});
  const Parameters p(n, with_copy);
  const Tensor range = upload(p.range, "adamw range");
  return {{}, [=] {
            const kernels::AdamWHyper hyper{static_cast<float>(kBeta1), static_cast<float>(kBeta2),
                                            static_cast<float>(kAdamEps)};
            const AdamWTensors& t = p.fp32;
            on_device(t.param.device(), [&](auto stream) {
              adamw(t.param.data<float>(), t.m.data<float>(), t.v.data<float>(),
                    p.copies.defined() ? p.copies.data<bfloat16>() : nullptr, t.grad.data<float>(),
                    static_cast<const kernels::AdamWRange*>(range.raw_data()), 1, n, hyper,
                    static_cast<const kernels::StepState*>(state.raw_data()), stream);
            });
          }};
}

KernelWork naive_adamw_first_step(int64_t n, bool with_copy) {
  const Parameters p(n, with_copy);
  return {{}, [=] {
            const AdamWOptions options{.beta1 = kBeta1, .beta2 = kBeta2, .eps = kAdamEps};
            kernels::StepState first;
            first.lr = static_cast<float>(kLearningRate);
            first.step = 1;
            naive_adamw(p.fp32, {&p.range, 1}, options, 1.0, first);
            if (p.copies.defined()) copy(p.copies, p.fp32.param);
          }};
}

KernelWork fused_global_norm(int64_t n) {
  const Tensor state = upload(kernels::StepState{}, {"step state", MemoryCategory::optimizer}),
               g = normal({n}, 0.0, 1e-3);
  Tensor scratch;
  on_device(g.device(), [&](auto stream) {
    scratch = Tensor::empty({global_norm_scratch(n, stream)}, DType::u8,
                            {"gradient norm scratch", MemoryCategory::workspace});
  });
  return {{}, [=] {
            on_device(g.device(), [&](auto stream) {
              global_norm(static_cast<kernels::StepState*>(state.raw_data()), g.data<float>(), n,
                          1.0f, 1.0f, nullptr, scratch.raw_data(), stream);
            });
          }};
}

// The logits become their gradient; called again, the gradient is as good as logits.
KernelWork in_place_cross_entropy(int64_t N, int64_t V) {
  const Tensor logits = normal({N, V}, 0.0, 1.0, DType::bf16);
  const Tensor targets = random_integers({N}, static_cast<int32_t>(V));
  const Tensor row_loss = Tensor::empty({N}, DType::f32, "row loss");
  const Tensor scale = full({}, 1.0 / static_cast<double>(N));
  return {{}, [=] {
            on_device(logits.device(), [&](auto stream) {
              cross_entropy_forward_backward(row_loss.data<float>(), logits.data<bfloat16>(),
                                             targets.data<int32_t>(), scale.data<float>(), N, V,
                                             kIgnoreIndex, {}, stream);
            });
          }};
}

KernelWork online_softmax_work(int64_t N, int64_t M, DType dtype) {
  const Tensor x = normal({N, M}, 0.0, 1.0, dtype), y = Tensor::empty({N, M}, dtype, "softmax");
  return {{}, [=] {
            visit("online softmax", x, [&]<class T>(std::type_identity<T>, auto stream) {
              softmax_online_forward(y.data<T>(), x.data<T>(), N, M, stream);
            });
          }};
}

}  // namespace

KernelVariant online_softmax_variant(int64_t N, int64_t M, DType dtype) {
  return {"online", [=] { return online_softmax_work(N, M, dtype); }};
}

// The logits are read and their gradient is written in their place.
std::vector<KernelCase> cross_entropy_in_place_cases(int64_t rows) {
  const int64_t N = rows > 0 ? rows : 16384, V = kVocabulary;
  const MakeInputs make = [=] {
    return Inputs{Variable::leaf(normal({N, V}, 0.0, 1.0, DType::bf16)),
                  random_integers({N}, static_cast<int32_t>(V))};
  };
  const Op naive = [](const Inputs& in) { return naive_cross_entropy(in[0], in[1].value()); };
  return {{{N, V},
           DType::bf16,
           bytes_of(DType::bf16, 2 * N * V),
           {forward_backward("naive", make, naive),
            {"fused", [=] { return in_place_cross_entropy(N, V); }}}}};
}

// p, m and v read and written, g read: 28 bytes a parameter; the BF16 copy written: 30.
std::vector<KernelCase> adamw_cases(int64_t rows) {
  const int64_t n = parameter_count(rows);
  std::vector<KernelCase> cases;
  for (const bool with_copy : {false, true}) {
    cases.push_back({{n},
                     with_copy ? DType::bf16 : DType::f32,
                     n * (with_copy ? 30 : 28),
                     {{"naive", [=] { return naive_adamw_first_step(n, with_copy); }},
                      {"fused", [=] { return fused_adamw_first_step(n, with_copy); }}}});
  }
  return cases;
}

std::vector<KernelCase> global_norm_cases(int64_t rows) {
  const int64_t n = parameter_count(rows);
  const auto naive = [=] {
    const Tensor g = normal({n}, 0.0, 1e-3);
    return KernelWork{{}, [=] {
                        const NoGrad no_grad;
                        pow(sum(pow(g, 2.0)), 0.5);
                      }};
  };
  return {{{n},
           DType::f32,
           bytes_of(DType::f32, n),
           {{"naive", naive}, {"fused", [=] { return fused_global_norm(n); }}}}};
}

KernelCase copy_case(int64_t rows) {
  const int64_t bytes = rows > 0 ? rows * 32 * 1024 : int64_t{1} << 30;
  const auto make = [=] {
    const Tensor from = Tensor::empty({bytes}, DType::u8, "copy source");
    const Tensor to = Tensor::empty({bytes}, DType::u8, "copy destination");
    fill(from, 1.0);
    return KernelWork{{}, [=] {
                        if (!to.device().is_cuda()) return copy(to, from);
                        cuda::copy(to.raw_data(), from.raw_data(), bytes,
                                   Context::current().cuda_stream());
                      }};
  };
  return {{bytes}, DType::u8, 2 * bytes, {{"memcpy", make}}};
}

// A millisecond or so: on a GPU tensor cores need 16-bit operands and so the larger product.
KernelCase matmul_case(DType dtype) {
  const bool on_gpu = Context::current().device().is_cuda();
  const int64_t n = !on_gpu ? 512 : dtype == DType::f32 ? 4096 : 8192;
  const MakeInputs make = [=] {
    return Inputs{normal({n, n}, 0.0, 1.0, dtype), normal({n, n}, 0.0, 1.0, dtype)};
  };
  const Op product = [](const Inputs& in) { return matmul(in[0], in[1], false, true); };
  return {{n, n, n}, dtype, bytes_of(dtype, 3 * n * n), {forward("gemm", make, product)}};
}

}  // namespace quern
