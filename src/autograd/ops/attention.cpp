#include "autograd/ops/attention.h"

#include <cmath>

#include "autograd/ops/attention_shape.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/view.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor with_packed_heads(const Tensor& x) {
  return x.strides()[3] == 1 || x.dim(3) == 1 ? x : x.contiguous();
}

}  // namespace

// saves: q, k, v, O and logsumexp
Variable flash_attention(const Variable& q_in, const Variable& k_in, const Variable& v_in,
                         const AttentionOptions& options) {
  const RangeScope range("flash_attention");
  kernels::AttentionShape s =
      detail::attention_shape(q_in.value(), k_in.value(), v_in.value(), options);
  kernels::check_attention(s);
  const Tensor q = with_packed_heads(q_in.value()), k = with_packed_heads(k_in.value()),
               v = with_packed_heads(v_in.value());
  const Tensor o = empty_like(q, "flash_attention");
  const Tensor lse = Tensor::empty({s.B, s.H, s.Tq}, detail::accumulate_type(q.dtype()), q.device(),
                                   "flash_attention logsumexp");
  detail::set_strides(s.q_strides, q);
  detail::set_strides(s.k_strides, k);
  detail::set_strides(s.v_strides, v);
  detail::set_strides(s.o_strides, o);
  visit("flash_attention", q, [&]<class T>(std::type_identity<T>, auto stream) {
    attention_forward(o.data<T>(), lse.data<acc_t<T>>(), q.data<T>(), k.data<T>(), v.data<T>(), s,
                      stream);
  });

  return record("flash_attention", o, {q_in, k_in, v_in}, [q, k, v, o, lse, s](Gradients& g) {
    const Tensor dq = empty_like(q, "flash_attention"), dk = empty_like(k, "flash_attention"),
                 dv = empty_like(v, "flash_attention");
    detail::attention_gradients(dq, dk, dv, g.output(), o, lse, q, k, v, s);
    g.add(0, dq);
    g.add(1, dk);
    g.add(2, dv);
  });
}

// Stacks the query heads that share a kv head along the queries, so that k and v are not repeated:
// with G = H / Hk, q becomes (B, Hk, G Tq, D). Scales q, which is smaller than the scores.
Variable naive_attention(const Variable& q_in, const Variable& k_in, const Variable& v_in,
                         const AttentionOptions& options) {
  const RangeScope range("naive_attention");
  const kernels::AttentionShape s =
      detail::attention_shape(q_in.value(), k_in.value(), v_in.value(), options);
  const Shape stacked{s.B, s.Hk, s.H / s.Hk * s.Tq, s.D};
  const Variable q = scale(reshape(permute(q_in, {0, 2, 1, 3}), stacked), s.scale);
  const Variable k = permute(k_in, {0, 2, 1, 3}), v = permute(v_in, {0, 2, 1, 3});
  Variable weights;
  {
    const RangeScope scores_range("scores");
    const Variable scores = matmul(q, k, false, true);
    weights = reshape(scores, {s.B, s.H, s.Tq, s.Tk});
    if (options.causal) weights = causal_mask(weights);
  }
  {
    const RangeScope softmax_range("softmax");
    weights = reshape(softmax(weights), {s.B, s.Hk, stacked[2], s.Tk});
  }
  const RangeScope values_range("values");
  const Variable o = reshape(matmul(weights, v), {s.B, s.H, s.Tq, s.D});
  return contiguous(permute(o, {0, 2, 1, 3}));
}

}  // namespace quern
