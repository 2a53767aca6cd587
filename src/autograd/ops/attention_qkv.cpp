#include "autograd/ops/attention_qkv.h"

#include <optional>

#include "autograd/ops/attention_shape.h"
#include "autograd/ops/op_checks.h"
#include "kernels/rope.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

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
  const char* op = "rope_attention";
  QUERN_CHECK(!qkv.leaf_store() && qkv.value().is_contiguous(),
              "rope_attention: qkv is a leaf or not contiguous, expected the fresh output of a "
              "linear: it is rotated in place");
  QUERN_CHECK(D % 2 == 0 && table.cos.ndim() == 2 && table.cos.dim(1) == D / 2 &&
                  table.cos.dim(0) >= qkv.dim(1),
              "rope_attention: the table has shape ", table.cos.shape(), ", expected (at least ",
              qkv.dim(1), ", ", D / 2, ")");
  detail::check_dtype(op, "the table", table.cos, detail::accumulate_type(qkv.dtype()));
  detail::check_device(op, "the table", table.cos, qkv.device());
}

// Rotates the q and k heads in place if there is a table.
Variable attend(const char* op, const char* lse_name, const Variable& qkv_in, const Tensor& qkv,
                int64_t H, int64_t Hk, int64_t D, const std::optional<RopeTable>& table,
                const AttentionOptions& options) {
  const Heads in = heads_of(qkv, H, Hk, D);
  kernels::AttentionShape s = detail::attention_shape(in.q, in.k, in.v, options);
  const Tensor o = empty_like(in.q, op);
  detail::set_strides(s.q_strides, in.q);
  detail::set_strides(s.k_strides, in.k);
  detail::set_strides(s.v_strides, in.v);
  detail::set_strides(s.o_strides, o);
  kernels::check_attention(s);
  const Tensor lse =
      Tensor::empty({s.B, s.H, s.Tq}, detail::accumulate_type(qkv.dtype()), qkv.device(), lse_name);
  if (table) rotate_in_place(in.rotated, *table);
  visit(op, qkv, [&]<class T>(std::type_identity<T>, auto stream) {
    attention_forward(o.data<T>(), lse.data<acc_t<T>>(), in.q.data<T>(), in.k.data<T>(),
                      in.v.data<T>(), s, stream);
  });

  // dq, dk and dv go to the places of q, k and v in dqkv; dq and dk are rotated back.
  const Shape joined{s.B, s.Tq, H * D};
  return record(op, o.reshape(joined), {qkv_in},
                [op, in, o, lse, s, table, shape = qkv.shape()](Gradients& g) {
                  const Tensor dqkv = Tensor::empty(shape, o.dtype(), o.device(), op);
                  const Heads out = heads_of(dqkv, s.H, s.Hk, s.D);
                  const Tensor d_o = g.output().reshape(o.shape());
                  detail::attention_gradients(out.q, out.k, out.v, d_o, o, lse, in.q, in.k, in.v, s,
                                              table ? &*table : nullptr);
                  g.add(0, dqkv);
                });
}

}  // namespace

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
