// Kernels that are no ops: the optimizer's, called as AdamW calls them over one run of parameters;
// the cross-entropy that the fused head calls; the copy.
#include "autograd/ops/binary.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/kernel_calls.h"
#include "kernels/cross_entropy.h"
#include "kernels/optimizer.h"
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
Tensor upload(T value, const char* name) {
  const Shape shape{static_cast<int64_t>(sizeof(T))};
  Tensor out = Tensor::empty(shape, DType::u8, name);
  copy(out, Tensor::borrow(&value, shape, DType::u8, kCpu));
  return out;
}

struct AdamWTensors {
  AdamWTensors(int64_t n, bool with_copy)
      : p(normal({n}, 0.0, 0.02)),
        m(zeros({n})),
        v(zeros({n})),
        g(normal({n}, 0.0, 1e-3)),
        copies(with_copy ? Tensor::empty({n}, DType::bf16, "copies") : Tensor()) {}

  Tensor p, m, v, g, copies;
};

KernelWork fused_adamw(int64_t n, bool with_copy) {
  kernels::StepState first;
  first.lr = static_cast<float>(kLearningRate);
  const Tensor state = upload(first, "step state");
  const Tensor range =
      upload(kernels::AdamWRange{0, n, 1.0f, static_cast<float>(kDecay)}, "adamw range");
  const AdamWTensors t(n, with_copy);
  return {{}, [=] {
            const kernels::AdamWHyper hyper{static_cast<float>(kBeta1), static_cast<float>(kBeta2),
                                            static_cast<float>(kAdamEps)};
            on_device(t.p.device(), [&](auto stream) {
              adamw(t.p.data<float>(), t.m.data<float>(), t.v.data<float>(),
                    t.copies.defined() ? t.copies.data<bfloat16>() : nullptr, t.g.data<float>(),
                    static_cast<const kernels::AdamWRange*>(range.raw_data()), 1, n, hyper,
                    static_cast<const kernels::StepState*>(state.raw_data()), stream);
            });
          }};
}

// The first update of AdamW, op by op.
void naive_update(const AdamWTensors& t) {
  const NoGrad no_grad;
  copy(t.m, add(scale(t.m, kBeta1), scale(t.g, 1.0 - kBeta1)).value());
  copy(t.v, add(scale(t.v, kBeta2), scale(pow(t.g, 2.0), 1.0 - kBeta2)).value());
  const Variable m_hat = scale(t.m, 1.0 / (1.0 - kBeta1));
  const Variable v_hat = scale(t.v, 1.0 / (1.0 - kBeta2));
  const Variable update = div(m_hat, scale(pow(v_hat, 0.5), 1.0, kAdamEps));
  copy(t.p, sub(scale(t.p, 1.0 - kLearningRate * kDecay), scale(update, kLearningRate)).value());
  if (t.copies.defined()) copy(t.copies, t.p);
}

KernelWork fused_global_norm(int64_t n) {
  const Tensor state = upload(kernels::StepState{}, "step state"), g = normal({n}, 0.0, 1e-3);
  Tensor scratch;
  on_device(g.device(), [&](auto stream) {
    scratch = Tensor::empty({global_norm_scratch(n, stream)}, DType::u8, "gradient norm scratch");
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
                                             kIgnoreIndex, stream);
            });
          }};
}

}  // namespace

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
    const auto naive = [=] {
      const AdamWTensors t(n, with_copy);
      return KernelWork{{}, [=] { naive_update(t); }};
    };
    cases.push_back({{n},
                     with_copy ? DType::bf16 : DType::f32,
                     n * (with_copy ? 30 : 28),
                     {{"naive", naive}, {"fused", [=] { return fused_adamw(n, with_copy); }}}});
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
                                   Context::current().cuda_stream().handle);
                      }};
  };
  return {{bytes}, DType::u8, 2 * bytes, {{"memcpy", make}}};
}

}  // namespace quern
