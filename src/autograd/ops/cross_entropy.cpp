#include "autograd/ops/cross_entropy.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/view.h"
#include "kernels/cross_entropy.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor check_arguments(const char* op, const Variable& logits, const Tensor& targets) {
  detail::check_floating(op, "logits", logits.value());
  detail::check_ndim(op, "logits", logits.value(), 1);
  detail::check_shape(op, "targets", targets, detail::without_last(logits.shape()));
  return detail::as_integers(op, "targets", targets, DType::i32, logits.device());
}

}  // namespace

// saves: the logits, the targets and one number per row
Variable cross_entropy(const Variable& input, const Tensor& targets_in, int32_t ignore_index) {
  const RangeScope range("cross_entropy");
  const Tensor targets = check_arguments("cross_entropy", input, targets_in);
  const Tensor logits = input.value().contiguous();
  const int64_t N = targets.numel(), V = logits.dim(-1);
  const DType sums = detail::accumulate_type(logits.dtype());
  const auto buffer = [&](const Shape& shape) {
    return Tensor::empty(shape, sums, logits.device(), "cross_entropy");
  };
  const Tensor row_loss = buffer({N}), lse = buffer({N}), loss = buffer({}), inverse = buffer({});
  visit("cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
    using A = acc_t<T>;
    const int32_t* target = targets.data<int32_t>();
    cross_entropy_forward(row_loss.data<A>(), lse.data<A>(), logits.data<T>(), target, N, V,
                          ignore_index, stream);
    cross_entropy_mean(loss.data<A>(), inverse.data<A>(), row_loss.data<A>(), target, N,
                       ignore_index, stream);
  });

  return record("cross_entropy", loss, {input},
                [logits, targets, lse, inverse, N, V, ignore_index](Gradients& g) {
                  const Tensor dlogits = empty_like(logits, "cross_entropy");
                  visit("cross_entropy", logits, [&]<class T>(std::type_identity<T>, auto stream) {
                    using A = acc_t<T>;
                    cross_entropy_backward(dlogits.data<T>(), logits.data<T>(), lse.data<A>(),
                                           targets.data<int32_t>(), inverse.data<A>(),
                                           g.output().data<A>(), N, V, ignore_index, stream);
                  });
                  g.add(0, dlogits);
                });
}

namespace {

// The targets for the naive losses, compared by arithmetic: bool(t - ignore_index) is 1 where t
// counts.
struct Rows {
  Tensor ignored, index, count;  // (N, 1) bool; (N, 1) i64, 0 where ignored; ()

  Rows(const Tensor& targets, DType sums, int32_t ignore_index) {
    const Tensor number = targets.reshape({targets.numel(), 1}).to(sums);
    const Tensor counts = scale(number, 1.0, -ignore_index).value().to(DType::boolean).to(sums);
    ignored = scale(counts, -1.0, 1.0).value().to(DType::boolean);
    index = mul(number, counts).value().to(DType::i64);
    const Tensor sum_of_counts = sum(counts).value();
    const Tensor none = scale(sum_of_counts.to(DType::boolean).to(sums), -1.0, 1.0).value();
    count = add(sum_of_counts, none).value();  // 1 when every target is ignored: 0 / 1
  }

  Variable mean(const Variable& losses, const Tensor& inverse_count) const {
    const Variable total = sum(masked_fill(losses, ignored, 0.0));
    if (!inverse_count.defined()) return div(total, count);
    return mul(total, inverse_count.to(total.dtype()));
  }
};

Variable in_rows(const Variable& logits) {
  const Shape rows{detail::count_leading(logits.shape()), logits.dim(-1)};
  return cast(reshape(logits, rows), detail::accumulate_type(logits.dtype()));
}

}  // namespace

Variable naive_cross_entropy(const Variable& logits, const Tensor& targets_in, int32_t ignore_index,
                             const Tensor& inverse_count) {
  const RangeScope range("naive_cross_entropy");
  const Tensor targets = check_arguments("naive_cross_entropy", logits, targets_in);
  const Variable x = in_rows(logits);
  const Rows rows(targets, x.dtype(), ignore_index);
  return rows.mean(neg(gather(log_softmax(x), -1, rows.index)), inverse_count);
}

// logsumexp(x) = x[v] - log_softmax(x)[v] for any v.
Variable naive_z_loss(const Variable& logits, const Tensor& targets_in, int32_t ignore_index,
                      const Tensor& inverse_count) {
  const RangeScope range("naive_z_loss");
  const Tensor targets = check_arguments("naive_z_loss", logits, targets_in);
  const Variable x = in_rows(logits);
  const Rows rows(targets, x.dtype(), ignore_index);
  const Variable lse = gather(sub(x, log_softmax(x)), -1, rows.index);
  return rows.mean(mul(lse, lse), inverse_count);
}

}  // namespace quern
