#include "autograd/ops/attention_shape.h"

#include <cmath>

#include "autograd/ops/op_checks.h"
#include "tensor/context.h"
#include "tensor/visit.h"

namespace quern::detail {

kernels::AttentionShape attention_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const AttentionOptions& options) {
  const char* op = "attention";
  check_floating(op, "q", q);
  check_dtype(op, "k", k, q.dtype());
  check_dtype(op, "v", v, q.dtype());
  check_device(op, "k", k, q.device());
  check_device(op, "v", v, q.device());
  QUERN_CHECK(q.ndim() == 4, "attention: q has shape ", q.shape(), ", expected (B, Tq, H, D)");
  QUERN_CHECK(k.ndim() == 4 && k.dim(0) == q.dim(0) && k.dim(3) == q.dim(3),
              "attention: k has shape ", k.shape(), ", expected (", q.dim(0), ", Tk, Hk, ",
              q.dim(3), ")");
  check_shape(op, "v", v, k.shape());
  kernels::AttentionShape s;
  s.B = q.dim(0);
  s.Tq = q.dim(1);
  s.Tk = k.dim(1);
  s.H = q.dim(2);
  s.Hk = k.dim(2);
  s.D = q.dim(3);
  QUERN_CHECK(s.Hk > 0 && s.H % s.Hk == 0, "attention: k has ", s.Hk, " heads, expected ", s.H,
              " or a divisor of q's ", s.H);
  s.causal = options.causal;
  s.scale = options.scale != 0.0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(s.D));
  const Context& context = Context::current();
  s.deterministic = context.options.deterministic;
  s.tf32 = context.options.tf32();
  s.portable = options.portable;
  return s;
}

void set_strides(int64_t (&strides)[3], const Tensor& x) {
  for (int i = 0; i < 3; ++i) strides[i] = x.strides()[i];
}

void attention_gradients(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                         const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, kernels::AttentionShape s, const RopeTable* rotary) {
  set_strides(s.dq_strides, dq);
  set_strides(s.dk_strides, dk);
  set_strides(s.dv_strides, dv);
  set_strides(s.do_strides, d_o);
  const Tensor work = scratch(
      q.device(), [&](auto stream) { return attention_backward_scratch(s, q.dtype(), stream); });
  visit("attention", q, [&]<class T>(std::type_identity<T>, auto stream) {
    kernels::RotaryTable<acc_t<T>> table;
    if (rotary) table = {rotary->cos.data<acc_t<T>>(), rotary->sin.data<acc_t<T>>()};
    attention_backward(dq.data<T>(), dk.data<T>(), dv.data<T>(), d_o.data<T>(), o.data<T>(),
                       lse.data<acc_t<T>>(), q.data<T>(), k.data<T>(), v.data<T>(), s, table,
                       work.raw_data(), stream);
  });
}

}  // namespace quern::detail
