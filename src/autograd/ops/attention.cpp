#include "autograd/ops/attention.h"

#include <cmath>
#include <optional>

#include "autograd/ops/mask.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/view.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

using kernels::AttentionShape;

// Extents, causality and scale; strides still unset. Throws when q, k and v do not fit each other.
AttentionShape attention_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options) {
  const char* op = "attention";
  detail::check_floating(op, "q", q);
  detail::check_dtype(op, "k", k, q.dtype());
  detail::check_dtype(op, "v", v, q.dtype());
  detail::check_device(op, "k", k, q.device());
  detail::check_device(op, "v", v, q.device());
  QUERN_CHECK(q.ndim() == 4, "attention: q has shape ", q.shape(), ", expected (B, Tq, H, D)");
  QUERN_CHECK(k.ndim() == 4 && k.dim(0) == q.dim(0) && k.dim(3) == q.dim(3),
              "attention: k has shape ", k.shape(), ", expected (", q.dim(0), ", Tk, Hk, ",
              q.dim(3), ")");
  detail::check_shape(op, "v", v, k.shape());
  AttentionShape s;
  s.B = q.dim(0);
  s.Tq = q.dim(1);
  s.Tk = k.dim(1);
  s.H = q.dim(2);
  s.Hk = k.dim(2);
  s.D = q.dim(3);
  QUERN_CHECK(s.Hk > 0 && s.H % s.Hk == 0, "attention: k has ", s.Hk, " heads, expected ",
              s.H == 0 ? "at least 1" : cat(s.H, " or a divisor of q's ", s.H));
  QUERN_CHECK(options.scale >= 0.0, "attention: scale is ", options.scale,
              ", expected more than 0, or 0 for 1 / sqrt(D)");
  s.causal = options.causal;
  s.scale = options.scale != 0.0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(s.D));
  const Context& context = Context::current();
  s.deterministic = context.options.deterministic;
  s.tf32 = context.options.tf32();
  s.portable = options.portable;
  return s;
}

// The strides of x (B, T, H, D) along B, T and H.
void set_strides(int64_t (&strides)[3], const Tensor& x) {
  for (int i = 0; i < 3; ++i) strides[i] = x.strides()[i];
}

struct FlashResult {
  Tensor o, lse;
};

// The flash forward; sets the strides of its tensors in `s`.
FlashResult flash_forward(const char* op, const char* lse_name, const Tensor& q, const Tensor& k,
                          const Tensor& v, AttentionShape& s) {
  const FlashResult result{
      empty_like(q, op),
      Tensor::empty({s.B, s.H, s.Tq}, detail::accumulate_type(q.dtype()), q.device(), lse_name)};
  set_strides(s.q_strides, q);
  set_strides(s.k_strides, k);
  set_strides(s.v_strides, v);
  set_strides(s.o_strides, result.o);
  visit(op, q, [&]<class T>(std::type_identity<T>, auto stream) {
    attention_forward(result.o.data<T>(), result.lse.data<acc_t<T>>(), q.data<T>(), k.data<T>(),
                      v.data<T>(), s, stream);
  });
  return result;
}

// Writes dq, dk and dv (any strides with D contiguous). `s` is the forward's. With a table, q and k
// were rotated by it, and dq and dk are rotated back.
void attention_gradients(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                         const FlashResult& result, const Tensor& q, const Tensor& k,
                         const Tensor& v, AttentionShape s, const RopeTable* rotary = nullptr) {
  set_strides(s.dq_strides, dq);
  set_strides(s.dk_strides, dk);
  set_strides(s.dv_strides, dv);
  set_strides(s.do_strides, d_o);
  const Tensor work = detail::scratch(
      q.device(), [&](auto stream) { return attention_backward_scratch(s, q.dtype(), stream); });
  visit("attention", q, [&]<class T>(std::type_identity<T>, auto stream) {
    kernels::RotaryTable<acc_t<T>> table;
    if (rotary) table = {rotary->cos.data<acc_t<T>>(), rotary->sin.data<acc_t<T>>()};
    attention_backward(dq.data<T>(), dk.data<T>(), dv.data<T>(), d_o.data<T>(), result.o.data<T>(),
                       result.lse.data<acc_t<T>>(), q.data<T>(), k.data<T>(), v.data<T>(), s, table,
                       work.raw_data(), stream);
  });
}

Tensor with_packed_heads(const Tensor& x) {
  return x.strides()[3] == 1 ? x : x.contiguous();
}

// The heads of qkv (B, T, (H + 2 Hk) D) as strided (B, T, heads, D) views.
struct Heads {
  Tensor q, k, v, rotated;  // rotated: the q and k heads together
};

Heads heads_of(const Tensor& qkv, int64_t H, int64_t Hk, int64_t D) {
  const Tensor all = qkv.reshape({qkv.dim(0), qkv.dim(1), H + 2 * Hk, D});
  return {all.slice(2, 0, H), all.slice(2, H, H + Hk), all.slice(2, H + Hk, H + 2 * Hk),
          all.slice(2, 0, H + Hk)};
}

void rotate_in_place(const Tensor& x, const RopeTable& table) {
  kernels::RopeLayout layout{.B = x.dim(0), .T = x.dim(1), .H = x.dim(2), .D = x.dim(3)};
  for (int i = 0; i < 3; ++i) layout.x_strides[i] = layout.y_strides[i] = x.strides()[i];
  visit("rope_attention", x, [&]<class T>(std::type_identity<T>, auto stream) {
    rope(x.data<T>(), x.data<T>(), table.cos.data<acc_t<T>>(), table.sin.data<acc_t<T>>(), nullptr,
         layout, false, stream);
  });
}

void check_qkv(const char* op, const Variable& qkv, int64_t H, int64_t Hk, int64_t D) {
  detail::check_floating(op, "qkv", qkv.value());
  QUERN_CHECK(qkv.shape().ndim() == 3 && qkv.dim(2) == (H + 2 * Hk) * D, op, ": qkv has shape ",
              qkv.shape(), ", expected (B, T, ", (H + 2 * Hk) * D, ")");
}

void check_table(const Variable& qkv, int64_t D, const RopeTable& table) {
  QUERN_CHECK(!qkv.leaf_store() && qkv.value().is_contiguous(),
              "rope_attention: qkv is a leaf or not contiguous, expected the fresh output of a "
              "linear: it is rotated in place");
  detail::check_rope_table("rope_attention", table, qkv.value(), D);
  QUERN_CHECK(table.cos.dim(0) >= qkv.dim(1), "rope_attention: the table has shape ",
              table.cos.shape(), ", expected (at least ", qkv.dim(1), ", ", D / 2, ")");
}

// Rotates the q and k heads in place if there is a table.
Variable attend(const char* op, const char* lse_name, const Variable& qkv_in, const Tensor& qkv,
                int64_t H, int64_t Hk, int64_t D, const std::optional<RopeTable>& table,
                const AttentionOptions& options) {
  const Heads in = heads_of(qkv, H, Hk, D);
  AttentionShape s = attention_shape(in.q, in.k, in.v, options);
  kernels::check_attention(s);
  if (table) rotate_in_place(in.rotated, *table);
  const FlashResult result = flash_forward(op, lse_name, in.q, in.k, in.v, s);

  // dq, dk and dv go to the places of q, k and v in dqkv; dq and dk are rotated back.
  return record(op, result.o.reshape({s.B, s.Tq, H * D}), {qkv_in},
                [op, in, result, s, table, shape = qkv.shape()](Gradients& g) {
                  const Tensor& o = result.o;
                  const Tensor dqkv = Tensor::empty(shape, o.dtype(), o.device(), op);
                  const Heads out = heads_of(dqkv, s.H, s.Hk, s.D);
                  attention_gradients(out.q, out.k, out.v, g.output().reshape(o.shape()), result,
                                      in.q, in.k, in.v, s, table ? &*table : nullptr);
                  g.add(0, dqkv);
                });
}

}  // namespace

// saves: q, k, v, O and logsumexp
Variable flash_attention(const Variable& q_in, const Variable& k_in, const Variable& v_in,
                         const AttentionOptions& options) {
  const RangeScope range("flash_attention");
  AttentionShape s = attention_shape(q_in.value(), k_in.value(), v_in.value(), options);
  kernels::check_attention(s);
  const Tensor q = with_packed_heads(q_in.value()), k = with_packed_heads(k_in.value()),
               v = with_packed_heads(v_in.value());
  const FlashResult result =
      flash_forward("flash_attention", "flash_attention logsumexp", q, k, v, s);
  return record(
      "flash_attention", result.o, {q_in, k_in, v_in}, [q, k, v, result, s](Gradients& g) {
        const Tensor dq = empty_like(q, "flash_attention"), dk = empty_like(k, "flash_attention"),
                     dv = empty_like(v, "flash_attention");
        attention_gradients(dq, dk, dv, g.output(), result, q, k, v, s);
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
  const AttentionShape s = attention_shape(q_in.value(), k_in.value(), v_in.value(), options);
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

// saves: qkv (rotated), O and logsumexp
Variable rope_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                        const RopeTable& table, const AttentionOptions& options) {
  const RangeScope range("rope_attention");
  check_qkv("rope_attention", qkv, H, Hk, D);
  check_table(qkv, D, table);
  return attend("rope_attention", "rope_attention logsumexp", qkv, qkv.value(), H, Hk, D, table,
                options);
}

// saves: qkv, O and logsumexp
Variable qkv_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                       const AttentionOptions& options) {
  const RangeScope range("qkv_attention");
  check_qkv("qkv_attention", qkv, H, Hk, D);
  return attend("qkv_attention", "qkv_attention logsumexp", qkv, qkv.value().contiguous(), H, Hk, D,
                {}, options);
}

}  // namespace quern
