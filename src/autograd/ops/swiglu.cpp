#include "autograd/ops/swiglu.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "autograd/ops/linear.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/saved.h"
#include "kernels/swiglu.h"
#include "kernels/swiglu_product.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor swiglu_of(const char* op, const Tensor& gate_up) {
  const int64_t rows = detail::count_leading(gate_up.shape()), F = gate_up.dim(-1) / 2;
  const Tensor y = Tensor::empty(detail::replace_last(gate_up.shape(), F), gate_up.dtype(),
                                 gate_up.device(), op);
  visit(op, gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
    swiglu_forward(y.data<T>(), gate_up.data<T>(), rows, F, stream);
  });
  return y;
}

// `made` if it is defined, else swiglu_of(op, gate_up), which equals it.
Tensor made_or_swiglu_of(const char* op, const Tensor& made, const Tensor& gate_up) {
  if (!made.defined()) return swiglu_of(op, gate_up);
  detail::check_shape(op, "made", made, detail::replace_last(gate_up.shape(), gate_up.dim(-1) / 2));
  detail::check_like(op, "made", made, gate_up.dtype(), gate_up.device());
  return made;
}

// Whether the kernels of swiglu_product.h support the tensors.
bool products_take(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& x) {
    return x.device().is_cuda() && x.dtype() == DType::bf16 && x.is_contiguous() &&
           reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0;
  });
}

// Calls f(stream) on the GPU.
template <class F>
void on_gpu(Device device, F&& f) {
  on_device(device, [&](auto stream) {
    if constexpr (std::is_same_v<decltype(stream), kernels::cuda::Stream>) f(stream);
  });
}

// The backward by one kernel, if it supports the tensors; else returns false without any work.
// dh = dy w, the gradient of h = swiglu(gate_up), enters d_gate_up without being stored; h, if
// defined, is computed again.
bool backward_by_product(const Tensor& d_gate_up, const Tensor& h, const Tensor& gate_up,
                         const Tensor& dy, const Tensor& w) {
  const Tensor& output = h.defined() ? h : d_gate_up;
  const kernels::SwigluSizes sizes{dy.dim(0), dy.dim(1), w.dim(1)};
  if (!products_take({d_gate_up, output, gate_up, dy, w}) ||
      !swiglu_product_backward_pays(sizes, Context::current().cuda_stream())) {
    return false;
  }
  on_gpu(gate_up.device(), [&](auto stream) {
    swiglu_product_backward(d_gate_up.data<bfloat16>(), h.defined() ? h.data<bfloat16>() : nullptr,
                            gate_up.data<bfloat16>(), dy.data<bfloat16>(), w.data<bfloat16>(),
                            sizes, stream);
  });
  return true;
}

// The same by a product and a pass over memory.
void backward_by_steps(const Tensor& d_gate_up, const Tensor& h, const Tensor& gate_up,
                       const Tensor& dy, const Tensor& w) {
  const int64_t N = dy.dim(0), F = w.dim(1);
  const Tensor dh = h.defined()
                        ? h  // holds dh, then h again
                        : Tensor::empty({N, F}, gate_up.dtype(), gate_up.device(), "swiglu_linear");
  detail::matrix_product(dh, dy, false, w, false);
  visit("swiglu_linear", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
    swiglu_backward(d_gate_up.data<T>(), detail::data_or_null<T>(h), gate_up.data<T>(),
                    dh.data<T>(), N, F, stream);
  });
}

}  // namespace

GateUpResult gate_up_linear(const Variable& x_in, const Variable& w_in) {
  GateUpResult made;
  const auto product = [&](const Tensor& gate_up, const Tensor& x, const Tensor& w) {
    const kernels::SwigluSizes sizes{x.dim(0), x.dim(1), w.dim(0) / 2};
    if (w.dim(0) % 2 != 0 || !products_take({gate_up, x, w}) ||
        !swiglu_product_forward_pays(sizes, Context::current().cuda_stream())) {
      return detail::matrix_product(gate_up, x, false, w, true);
    }
    made.output =
        Tensor::empty(detail::replace_last(x_in.shape(), sizes.F), x.dtype(), x.device(), "swiglu");
    on_gpu(x.device(), [&](auto stream) {
      swiglu_product_forward(gate_up.data<bfloat16>(), made.output.data<bfloat16>(),
                             x.data<bfloat16>(), w.data<bfloat16>(), sizes, stream);
    });
  };
  made.gate_up = detail::linear_by(x_in, w_in, product);
  return made;
}

// saves: gate_up, which gives the output again
Variable swiglu(const Variable& input) {
  const RangeScope range("swiglu");
  detail::check_floating("swiglu", "gate_up", input.value());
  detail::check_ndim("swiglu", "gate_up", input.value(), 1);
  QUERN_CHECK(input.dim(-1) % 2 == 0, "swiglu: gate_up has shape ", input.shape(),
              ", expected an even last extent");
  const Tensor gate_up = input.value().contiguous();
  const int64_t rows = detail::count_leading(gate_up.shape()), F = gate_up.dim(-1) / 2;
  const Variable y =
      record("swiglu", swiglu_of("swiglu", gate_up), {input}, [gate_up, rows, F](Gradients& g) {
        const Tensor dx =
            Tensor::empty(gate_up.shape(), gate_up.dtype(), gate_up.device(), "swiglu");
        visit("swiglu", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
          swiglu_backward<T>(dx.data<T>(), nullptr, gate_up.data<T>(), g.output().data<T>(), rows,
                             F, stream);
        });
        g.add(0, dx);
      });
  return y.with_recipe(
      std::make_shared<Recipe>([gate_up] { return swiglu_of("swiglu", gate_up); }));
}

// saves: gate_up and w; h = swiglu(gate_up) if it is kept and w needs a gradient
Variable swiglu_linear(const Variable& gate_up_in, const Variable& w_in, const Tensor& made,
                       ActivationOutput output, const std::shared_ptr<HostStash>& stash) {
  constexpr const char* kOp = "swiglu_linear";
  const RangeScope range(kOp);
  detail::check_operands(kOp, "gate_up", gate_up_in.value(), w_in.value());
  QUERN_CHECK(w_in.shape().ndim() == 2 && gate_up_in.dim(-1) == 2 * w_in.dim(1),
              "swiglu_linear: w has shape ", w_in.shape(), " and gate_up ", gate_up_in.shape(),
              ", expected (C, F) and (..., 2 F)");
  const Tensor gate_up = gate_up_in.value().contiguous();
  const Tensor& w = w_in.value();
  const int64_t N = detail::count_leading(gate_up.shape()), F = w.dim(1);
  const Tensor y = Tensor::empty(detail::replace_last(gate_up.shape(), w.dim(0)), gate_up.dtype(),
                                 gate_up.device(), kOp);
  const Tensor h = detail::as_rows(made_or_swiglu_of(kOp, made, gate_up));
  const auto saved = keep({gate_up}, stash);
  detail::matrix_product(detail::as_rows(y), h, false, w, true);

  const bool keeps = output == ActivationOutput::kept && w_in.requires_grad();
  const Tensor kept = keeps ? h : Tensor();
  return record(kOp, y, {gate_up_in, w_in}, [saved, w, N, F, h = kept](Gradients& g) mutable {
    const Tensor gate_up = saved()[0];
    const Tensor dy = detail::as_rows(g.output());
    const auto make_dw = [&] {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, h, false, add);
      h = {};
    };
    const bool again = g.needs(1) && !h.defined();
    if (h.defined()) make_dw();  // first, to free its memory
    if (g.needs(0)) {
      if (again) h = Tensor::empty({N, F}, gate_up.dtype(), gate_up.device(), kOp);
      const Tensor d_gate_up =
          Tensor::empty(gate_up.shape(), gate_up.dtype(), gate_up.device(), kOp);
      if (!backward_by_product(d_gate_up, h, gate_up, dy, w)) {
        backward_by_steps(d_gate_up, h, gate_up, dy, w);
      }
      g.add(0, d_gate_up);
    } else if (again) {
      h = detail::as_rows(swiglu_of(kOp, gate_up));
    }
    if (again) make_dw();
  });
}

}  // namespace quern
