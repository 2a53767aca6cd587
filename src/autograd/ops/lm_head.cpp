#include "autograd/ops/lm_head.h"

#include <algorithm>

#include "autograd/ops/common.h"
#include "autograd/ops/matrix_product.h"
#include "kernels/cross_entropy.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

struct Head {
  Tensor x, w, targets;  // (N, C), (V, C), (N)
  Tensor lse;            // (N)
  int32_t ignore_index;
  int64_t chunk_rows;

  int64_t N() const { return x.dim(0); }
  int64_t V() const { return w.dim(0); }

  // Calls f(begin, end, logits of these rows): logits (end - begin, V) in one buffer used again and
  // again.
  template <class F>
  void for_each_chunk(F&& f) const {
    const int64_t most = std::min(chunk_rows, N());
    const Tensor buffer = Tensor::empty({most, V()}, x.dtype(), x.device(), "lm_head logits");
    for (int64_t begin = 0; begin < N(); begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, N());
      const Tensor logits = buffer.slice(0, 0, end - begin);
      detail::matrix_product(logits, x.slice(0, begin, end), false, w, true);
      f(begin, end, logits);
    }
  }
};

Head make_head(const Variable& x, const Variable& w, const Tensor& targets, int32_t ignore_index,
               int64_t chunk_rows) {
  const char* op = "lm_head_cross_entropy";
  detail::check_floating(op, "x", x.value());
  detail::check_ndim(op, "x", x.value(), 1);
  detail::check_dtype(op, "w", w.value(), x.dtype());
  detail::check_device(op, "w", w.value(), x.device());
  QUERN_CHECK(w.shape().ndim() == 2 && w.dim(1) == x.dim(-1), op, ": w has shape ", w.shape(),
              ", expected (V, ", x.dim(-1), ")");
  detail::check_shape(op, "targets", targets, detail::without_last(x.shape()));
  QUERN_CHECK(chunk_rows > 0, op, ": chunk_rows is ", chunk_rows, ", expected at least 1");
  const Tensor rows = detail::as_rows(x.value());
  const Tensor ids = detail::as_integers(op, "targets", targets, DType::i32, x.device());
  const Shape per_row{rows.dim(0)};
  const DType sums = detail::accumulate_type(x.dtype());
  return {rows,
          w.value(),
          ids.reshape(per_row),
          Tensor::empty(per_row, sums, x.device(), "lm_head logsumexp"),
          ignore_index,
          chunk_rows};
}

// dx = dlogits w, dw = dlogits^T x, chunk by chunk. Chunks of dw are summed in FP32.
void head_gradients(Gradients& g, const Head& head, const Tensor& inverse_count,
                    const Shape& x_shape) {
  const bool needs_x = g.needs(0);
  const Tensor dx = needs_x ? empty_like(head.x, "lm_head dx") : Tensor();
  detail::SumTarget dw(g, 1, detail::accumulate_type(head.w.dtype()));
  bool add = dw.add;
  head.for_each_chunk([&](int64_t begin, int64_t end, const Tensor& logits) {
    visit("lm_head_cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
      using A = acc_t<T>;
      cross_entropy_backward(logits.data<T>(), logits.data<T>(), head.lse.data<A>() + begin,
                             head.targets.data<int32_t>() + begin, inverse_count.data<A>(),
                             g.output().data<A>(), end - begin, head.V(), head.ignore_index,
                             stream);
    });
    const Tensor& dlogits = logits;
    if (needs_x) detail::matrix_product(dx.slice(0, begin, end), dlogits, false, head.w, false);
    if (dw.sum.defined()) {
      detail::matrix_product(dw.sum, dlogits, true, head.x.slice(0, begin, end), false, add);
    }
    add = true;
  });
  if (!add && dw.sum.defined()) fill(dw.sum, 0.0);  // no rows at all
  dw.finish();
  if (needs_x) g.add(0, dx.reshape(x_shape));
}

}  // namespace

// saves: x, w, the targets and one number a row
Variable lm_head_cross_entropy(const Variable& x, const Variable& w, const Tensor& targets,
                               int32_t ignore_index, int64_t chunk_rows) {
  const RangeScope range("lm_head_cross_entropy");
  const Head head = make_head(x, w, targets, ignore_index, chunk_rows);
  const Tensor loss = Tensor::empty({}, head.lse.dtype(), x.device(), "loss");
  const Tensor inverse_count = empty_like(loss, "lm_head inverse count");
  const Tensor row_loss = empty_like(head.lse, "lm_head row loss");
  head.for_each_chunk([&](int64_t begin, int64_t end, const Tensor& logits) {
    visit("lm_head_cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
      using A = acc_t<T>;
      cross_entropy_forward(row_loss.data<A>() + begin, head.lse.data<A>() + begin,
                            logits.data<T>(), head.targets.data<int32_t>() + begin, end - begin,
                            head.V(), ignore_index, stream);
    });
  });
  visit("lm_head_cross_entropy", head.x, [&]<class T>(std::type_identity<T>, auto stream) {
    using A = acc_t<T>;
    cross_entropy_mean(loss.data<A>(), inverse_count.data<A>(), row_loss.data<A>(),
                       head.targets.data<int32_t>(), head.N(), ignore_index, stream);
  });
  return record("lm_head_cross_entropy", loss, {x, w},
                [head, inverse_count, shape = x.shape()](Gradients& g) {
                  head_gradients(g, head, inverse_count, shape);
                });
}

}  // namespace quern
