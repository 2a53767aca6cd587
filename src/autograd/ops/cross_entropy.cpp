#include "autograd/ops/cross_entropy.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/common.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/mask.h"
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

// saves: the logits, the targets and one number a row
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

Variable naive_cross_entropy(const Variable& logits, const Tensor& targets_in,
                             int32_t ignore_index) {
  const RangeScope range("naive_cross_entropy");
  const Tensor targets = check_arguments("naive_cross_entropy", logits, targets_in);
  const DType sums = detail::accumulate_type(logits.dtype());
  const int64_t N = targets.numel(), V = logits.dim(-1);

  // Comparisons made of arithmetic: bool(t - ignore_index) is 1 where t counts.
  const Tensor number = targets.reshape({N, 1}).to(sums);
  const Tensor counts = scale(number, 1.0, -ignore_index).value().to(DType::boolean).to(sums);
  const Tensor ignored = scale(counts, -1.0, 1.0).value().to(DType::boolean);
  const Tensor index = mul(number, counts).value().to(DType::i64);  // 0 where ignored
  const Tensor count = sum(counts).value();
  const Tensor none = scale(count.to(DType::boolean).to(sums), -1.0, 1.0).value();

  const Variable log_p = log_softmax(cast(reshape(logits, {N, V}), sums));
  const Variable losses = masked_fill(neg(gather(log_p, -1, index)), ignored, 0.0);
  return div(sum(losses), add(count, none));  // 0 / 1 when every target is ignored
}

}  // namespace quern
