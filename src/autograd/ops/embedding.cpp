#include "autograd/ops/embedding.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "kernels/copy.h"
#include "kernels/embedding.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

// saves: the ids
Variable embedding(const Variable& w_in, const Tensor& ids_in, std::optional<DType> out) {
  const RangeScope range("embedding");
  detail::check_floating("embedding", "w", w_in.value());
  QUERN_CHECK(w_in.shape().ndim() == 2, "embedding: w has shape ", w_in.shape(),
              ", expected (V, C)");
  const Tensor w = w_in.value().contiguous();
  const Tensor ids = detail::as_integers("embedding", "ids", ids_in, DType::i32, w.device());
  const DType dtype = out.value_or(w.dtype());
  const int64_t n = ids.numel(), V = w.dim(0), C = w.dim(1);
  Shape shape = ids.shape();
  shape.push_back(C);
  const Tensor y = Tensor::empty(shape, dtype, w.device(), "embedding");
  visit("embedding", w, [&]<class T>(std::type_identity<T>, auto stream) {
    const auto* id = ids.data<int32_t>();
    if (dtype == w.dtype()) {
      return embedding_forward(y.data<T>(), w.data<T>(), id, n, V, C, stream);
    }
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (dtype == DType::f32) {
        return embedding_forward(y.data<float>(), w.data<T>(), id, n, V, C, stream);
      }
    }
    fail(cat("embedding: cannot give ", dtype, " from w of ", w.dtype()));
  });

  return record("embedding", y, {w_in}, [ids, n, V, C](Gradients& g) {
    const Tensor& dy = g.output();
    detail::SumTarget dw(g, 0, detail::accumulate_type(dy.dtype()));
    const Tensor work = detail::scratch(
        dy.device(), [&](auto stream) { return embedding_backward_scratch(n, V, C, stream); });
    visit("embedding", dy, [&]<class T>(std::type_identity<T>, auto stream) {
      embedding_backward(dw.sum.data<acc_t<T>>(), dy.data<T>(), ids.data<int32_t>(), n, V, C,
                         dw.add, work.raw_data(), stream);
    });
    dw.finish();
  });
}

// saves: nothing
Variable add_rows(const Variable& x, const Variable& w, int64_t begin) {
  const RangeScope range("add_rows");
  detail::check_floating("add_rows", "x", x.value());
  detail::check_device("add_rows", "w", w.value(), x.device());
  QUERN_CHECK(x.shape().ndim() >= 2, "add_rows: x has shape ", x.shape(), ", expected (..., T, C)");
  const int64_t T = x.dim(-2), C = x.dim(-1);
  QUERN_CHECK(w.shape().ndim() == 2 && w.dim(1) == C, "add_rows: w has shape ", w.shape(),
              ", expected (P, ", C, ")");
  QUERN_CHECK(begin >= 0 && begin + T <= w.dim(0), "add_rows: rows ", begin, " to ", begin + T - 1,
              " of w, which has ", w.dim(0));
  const auto sum_with_rows = [&] {
    const NoGrad no_grad;
    return add(x, w.value().slice(0, begin, begin + T).to(x.dtype())).value();
  };
  return record("add_rows", sum_with_rows(), {x, w}, [begin, T, C](Gradients& g) {
    const Tensor& dy = g.output();
    g.add(0, dy);
    detail::SumTarget dw(g, 1, detail::accumulate_type(dy.dtype()));
    if (!dw.sum.defined()) return;
    const Tensor sums = detail::sum_to(dy, {T, C}, dw.sum.dtype());
    if (!dw.add) fill(dw.sum, 0.0);
    const Tensor rows = dw.sum.slice(0, begin, begin + T);
    visit("add_rows", sums, [&]<class T>(std::type_identity<T>, auto stream) {
      accumulate(rows.data<T>(), sums.data<T>(), rows.numel(), dw.add, stream);
    });
    dw.finish();
  });
}

}  // namespace quern
