#include "autograd/ops/lm_head.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "base/round_up.h"
#include "kernels/cross_entropy.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

struct Head {
  Tensor x, w, targets;  // (N, C), (width, C) with rows of zeros from V on, (N)
  int64_t V;             // the vocabulary
  Tensor row_loss;       // (N)
  Tensor row_z;          // (N), logsumexp^2; undefined without a z-loss
  LmHeadOptions options;

  int64_t N() const { return x.dim(0); }
  int64_t width() const { return w.dim(0); }

  // Calls f(begin, end, logits of these rows). All chunks of logits (end - begin, width) share one
  // buffer. Those beyond V are -inf: they have no part in any loss, and gradients of 0. A bad
  // target among them gives an infinite loss, where others give NaN.
  template <class F>
  void for_each_chunk(F&& f) const {
    const int64_t chunk_rows = options.chunk_rows, most = std::min(chunk_rows, N());
    const Tensor buffer = Tensor::empty({most, width()}, x.dtype(), x.device(), "lm_head logits");
    const Tensor rest = buffer.slice(1, V, width());
    Tensor none;
    if (rest.numel() > 0) none = full({1, 1}, -std::numeric_limits<double>::infinity(), x.dtype());
    for (int64_t begin = 0; begin < N(); begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, N());
      const Tensor logits = buffer.slice(0, 0, end - begin);
      detail::matrix_product(logits, x.slice(0, begin, end), false, w, true);
      if (none.defined()) copy(rest, none.expand(rest.shape()));
      f(begin, end, logits);
    }
  }
};

int64_t in_16_bytes(DType dtype) {  // elements
  return 16 / static_cast<int64_t>(size_of(dtype));
}

// On a GPU: w with rows of zeros up to a multiple of 16 bytes of logits. Without them a step of
// GPT-2 with its 50,257 words takes 1.8 times as long on an H200.
Tensor widened(const Tensor& w) {
  const int64_t V = w.dim(0);
  const int64_t width = w.device().is_cuda() ? round_up(V, in_16_bytes(w.dtype())) : V;
  if (width == V) return w;
  const Tensor wide = Tensor::empty({width, w.dim(1)}, w.dtype(), w.device(), "lm_head weight");
  copy(wide.slice(0, 0, V), w);
  fill(wide.slice(0, V, width), 0.0);
  return wide;
}

Head make_head(const Variable& x, const Variable& w, const Tensor& targets,
               const LmHeadOptions& options) {
  const char* op = "lm_head_cross_entropy";
  detail::check_operands(op, "x", x.value(), w.value());
  QUERN_CHECK(w.shape().ndim() == 2 && w.dim(1) == x.dim(-1), op, ": w has shape ", w.shape(),
              ", expected (V, ", x.dim(-1), ")");
  detail::check_shape(op, "targets", targets, detail::without_last(x.shape()));
  QUERN_CHECK(options.chunk_rows > 0, op, ": chunk_rows is ", options.chunk_rows,
              ", expected at least 1");
  const Tensor rows = detail::as_rows(x.value());
  const Tensor ids = detail::as_integers(op, "targets", targets, DType::i32, x.device());
  const Shape per_row{rows.dim(0)};
  const DType sums = detail::accumulate_type(x.dtype());
  const auto per_row_sums = [&](const char* name) {
    return Tensor::empty(per_row, sums, x.device(), name);
  };
  return {rows,
          widened(w.value()),
          ids.reshape(per_row),
          w.dim(0),
          per_row_sums("lm_head row loss"),
          options.z_loss != 0.0 ? per_row_sums("lm_head row z") : Tensor(),
          options};
}

// Computes only the row losses.
void losses(const Head& head) {
  const Tensor lse = empty_like(head.row_loss, "lm_head logsumexp");
  head.for_each_chunk([&](int64_t begin, int64_t end, const Tensor& logits) {
    visit("lm_head_cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
      using A = acc_t<T>;
      cross_entropy_forward(head.row_loss.data<A>() + begin, lse.data<A>() + begin,
                            logits.data<T>(), head.targets.data<int32_t>() + begin, end - begin,
                            head.width(), head.options.ignore_index, stream);
    });
  });
}

// Memory for the gradients of x and w; undefined where no gradient is needed.
struct HeadGradients {
  Tensor dx;         // (N, C), of x's dtype
  Tensor dw;         // (V, C), a sum over chunks in FP32 (FP64 for FP64)
  bool add = false;  // add to dw
};

// From (softmax - onehot) to the gradient of the scaled mean: one element.
Tensor gradient_factor(const Head& head) {
  const DType sums = head.row_loss.dtype();
  const Tensor& inverse = head.options.inverse_count;
  if (inverse.defined()) return scale(inverse.to(sums), head.options.scale).value();
  Tensor made = Tensor::empty({}, sums, head.x.device(), "lm_head scale");
  visit("lm_head_cross_entropy", head.x, [&]<class T>(std::type_identity<T>, auto stream) {
    cross_entropy_scale(made.data<acc_t<T>>(), head.targets.data<int32_t>(), head.N(),
                        head.options.scale, head.options.ignore_index, stream);
  });
  return made;
}

// dw = dlogits^T x, += if `to.add`. Where logits are wider than V, its last rows are computed with
// those beyond V, so that both products have whole vectors.
void add_weight_gradient(const Head& head, const HeadGradients& to, const Tensor& dlogits,
                         const Tensor& x) {
  const int64_t V = head.V, width = head.width();
  if (width == V) return detail::matrix_product(to.dw, dlogits, true, x, false, to.add);
  const int64_t begin = width - in_16_bytes(x.dtype());
  if (begin > 0) {
    detail::matrix_product(to.dw.slice(0, 0, begin), dlogits.slice(1, 0, begin), true, x, false,
                           to.add);
  }
  const Tensor rest =
      Tensor::empty({width - begin, x.dim(1)}, to.dw.dtype(), x.device(), "lm_head last rows");
  detail::matrix_product(rest, dlogits.slice(1, begin, width), true, x, false);
  const Tensor last = to.dw.slice(0, begin, V), made = rest.slice(0, 0, V - begin);
  copy(last, to.add ? add(last, made).value() : made);
}

// Computes the row losses. The same pass over each chunk of logits also computes dx = dlogits w and
// dw = dlogits^T x.
void losses_and_gradients(const Head& head, HeadGradients to) {
  const Tensor factor = gradient_factor(head);
  head.for_each_chunk([&](int64_t begin, int64_t end, const Tensor& logits) {
    visit("lm_head_cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
      using A = acc_t<T>;
      kernels::ZLoss<A> z;
      if (head.row_z.defined()) {
        z = {head.row_z.data<A>() + begin, static_cast<A>(head.options.z_loss)};
      }
      cross_entropy_forward_backward(
          head.row_loss.data<A>() + begin, logits.data<T>(), head.targets.data<int32_t>() + begin,
          factor.data<A>(), end - begin, head.width(), head.options.ignore_index, z, stream);
    });
    const Tensor& dlogits = logits;
    if (to.dx.defined()) {
      detail::matrix_product(to.dx.slice(0, begin, end), dlogits, false, head.w, false);
    }
    if (to.dw.defined()) add_weight_gradient(head, to, dlogits, head.x.slice(0, begin, end));
    to.add = true;
  });
  if (!to.add && to.dw.defined()) fill(to.dw, 0.0);  // no rows at all
}

// The mean over the rows that are not ignored, times `factor`.
Tensor mean_of(const Head& head, const Tensor& rows, double factor) {
  if (const Tensor& inverse = head.options.inverse_count; inverse.defined()) {
    return scale(mul(sum(rows), inverse.to(rows.dtype())), factor).value();
  }
  const Tensor loss = Tensor::empty({}, head.row_loss.dtype(), head.x.device(), "loss");
  const Tensor inverse_count = empty_like(loss, "lm_head inverse count");
  visit("lm_head_cross_entropy", head.x, [&]<class T>(std::type_identity<T>, auto stream) {
    using A = acc_t<T>;
    cross_entropy_mean(loss.data<A>(), inverse_count.data<A>(), rows.data<A>(),
                       head.targets.data<int32_t>(), head.N(), head.options.ignore_index, stream);
  });
  return factor == 1.0 ? loss : scale(loss, factor).value();
}

LmHeadResult mean_losses(const Head& head) {
  const double scale = head.options.scale;
  const Tensor cross_entropy = mean_of(head, head.row_loss, scale);
  if (!head.row_z.defined()) return {cross_entropy, cross_entropy, {}};
  const Tensor z = mean_of(head, head.row_z, scale * head.options.z_loss);
  return {add(cross_entropy, z), cross_entropy, z};
}

// Scales a gradient for an incoming gradient of 1 by `dloss` (a device scalar).
Tensor times(const Tensor& gradient, const Tensor& dloss, DType dtype) {
  return mul(gradient.to(dloss.dtype()), dloss).value().to(dtype);
}

}  // namespace

// saves: the gradient of x; that of w too, unless w is a parameter, whose buffer has it
LmHeadResult lm_head_loss(const Variable& x, const Variable& w, const Tensor& targets,
                          const LmHeadOptions& options) {
  const RangeScope range("lm_head_cross_entropy");
  const Head head = make_head(x, w, targets, options);
  const bool recorded = Context::current().grad_enabled;
  if (!recorded || !(x.requires_grad() || w.requires_grad())) {
    if (head.row_z.defined()) {
      losses_and_gradients(head, {});
    } else {
      losses(head);
    }
    return mean_losses(head);
  }

  const DType sums = head.row_loss.dtype();
  Leaf* const leaf = w.leaf_store();
  const bool direct = leaf && leaf->has_buffer && leaf->grad.dtype() == sums;
  HeadGradients to;
  if (x.requires_grad()) to.dx = empty_like(head.x, "lm_head dx");
  if (w.requires_grad()) {
    to.dw = direct ? leaf->grad : Tensor::empty(w.shape(), sums, w.device(), "lm_head dw");
    to.add = direct && !std::exchange(leaf->fresh, false);
  }
  losses_and_gradients(head, to);
  LmHeadResult result = mean_losses(head);
  const Tensor loss = result.loss.value();
  if (direct) {
    ++leaf->owed;
    result.loss =
        record_root("lm_head_cross_entropy", loss, {x, w},
                    [dx = to.dx, leaf, zeroed = leaf->zeroed, shape = x.shape()](Gradients& g) {
                      QUERN_CHECK(leaf->zeroed == zeroed,
                                  "lm_head_cross_entropy: the gradients were zeroed between ",
                                  "the forward, which adds that of ", leaf->name,
                                  ", and the backward; zero them before the forward");
                      --leaf->owed;
                      if (g.needs(0)) g.add(0, dx.reshape(shape));
                    });
    return result;
  }
  result.loss =
      record("lm_head_cross_entropy", loss, {x, w},
             [to, shape = x.shape(), x_type = x.dtype(), w_type = w.dtype()](Gradients& g) {
               if (g.needs(0)) g.add(0, times(to.dx, g.output(), x_type).reshape(shape));
               if (g.needs(1)) g.add(1, times(to.dw, g.output(), w_type));
             });
  return result;
}

Variable lm_head_cross_entropy(const Variable& x, const Variable& w, const Tensor& targets,
                               int32_t ignore_index, int64_t chunk_rows, double loss_scale) {
  return lm_head_loss(x, w, targets, {ignore_index, chunk_rows, loss_scale}).loss;
}

}  // namespace quern
