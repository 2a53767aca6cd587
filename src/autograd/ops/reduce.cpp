#include "autograd/ops/reduce.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "kernels/reduce.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// x as (outer, n, inner), reduced over n, and the shape of the result.
struct Plan {
  kernels::ReduceShape extents;
  Shape result;
};

Plan plan_along(const Shape& shape, int dim, bool keepdim) {
  const int axis = shape.axis(dim);
  Plan plan;
  for (int i = 0; i < shape.ndim(); ++i) {
    auto& [outer, n, inner] = plan.extents;
    (i < axis ? outer : i == axis ? n : inner) *= shape[i];
    if (i != axis) plan.result.push_back(shape[i]);
    if (i == axis && keepdim) plan.result.push_back(1);
  }
  return plan;
}

Plan plan_everything(const Shape& shape) {
  return {{1, shape.numel(), 1}, Shape{}};
}

void check_not_empty(const char* op, const Shape& shape, const Plan& plan) {
  QUERN_CHECK(plan.extents.n > 0, op, ": x has shape ", shape,
              ", expected at least one element to reduce");
}

Tensor sum_scratch(const Plan& plan, Device device) {
  return detail::scratch(device,
                         [&](auto stream) { return sum_forward_scratch(plan.extents, stream); });
}

// saves: nothing
Variable scaled_sum(const char* op, const Variable& input, const Plan& plan, double scale) {
  const RangeScope range(op);
  detail::check_floating(op, "x", input.value());
  const Tensor x = input.value().contiguous();
  const Tensor y = Tensor::empty(plan.result, x.dtype(), x.device(), op);
  const Tensor work = sum_scratch(plan, x.device());
  visit_pointwise(op, x, [&]<class T>(std::type_identity<T>, auto stream) {
    sum_forward(y.data<T>(), x.data<T>(), plan.extents, scale, work.raw_data(), stream);
  });
  return record(op, y, {input}, [op, plan, scale, shape = x.shape()](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device(), op);
    visit_pointwise(op, dy, [&]<class T>(std::type_identity<T>, auto stream) {
      sum_backward(dx.data<T>(), dy.data<T>(), plan.extents, scale, stream);
    });
    g.add(0, dx);
  });
}

Variable mean_of(const Variable& x, const Plan& plan) {
  check_not_empty("mean", x.shape(), plan);
  return scaled_sum("mean", x, plan, 1.0 / static_cast<double>(plan.extents.n));
}

}  // namespace

Variable sum(const Variable& x, int dim, bool keepdim) {
  return scaled_sum("sum", x, plan_along(x.shape(), dim, keepdim), 1.0);
}
Variable sum(const Variable& x) {
  return scaled_sum("sum", x, plan_everything(x.shape()), 1.0);
}
Variable mean(const Variable& x, int dim, bool keepdim) {
  return mean_of(x, plan_along(x.shape(), dim, keepdim));
}
Variable mean(const Variable& x) {
  return mean_of(x, plan_everything(x.shape()));
}

// saves: x
Variable sum_squares(const Variable& input, int dim, bool keepdim) {
  const RangeScope range("sum_squares");
  detail::check_floating("sum_squares", "x", input.value());
  const Tensor x = input.value().contiguous();
  const Plan plan = plan_along(x.shape(), dim, keepdim);
  const Tensor y = Tensor::empty(plan.result, x.dtype(), x.device(), "sum_squares");
  const Tensor work = sum_scratch(plan, x.device());
  visit_pointwise("sum_squares", x, [&]<class T>(std::type_identity<T>, auto stream) {
    sum_squares_forward(y.data<T>(), x.data<T>(), plan.extents, 1.0, work.raw_data(), stream);
  });
  return record("sum_squares", y, {input}, [x, dim](Gradients& g) {
    Shape kept = x.shape();
    kept[kept.axis(dim)] = 1;
    g.add(0, mul(x, scale(g.output().reshape(kept), 2.0)).value());
  });
}

// saves: the indices
MaxResult max(const Variable& input, int dim, bool keepdim) {
  const RangeScope range("max");
  detail::check_floating("max", "x", input.value());
  const Tensor x = input.value().contiguous();
  const Plan plan = plan_along(x.shape(), dim, keepdim);
  check_not_empty("max", x.shape(), plan);
  const Tensor y = Tensor::empty(plan.result, x.dtype(), x.device(), "max");
  const Tensor indices = Tensor::empty(plan.result, DType::i64, x.device(), "max indices");
  visit_pointwise("max", x, [&]<class T>(std::type_identity<T>, auto stream) {
    max_forward(y.data<T>(), indices.data<int64_t>(), x.data<T>(), plan.extents, stream);
  });
  const Variable values =
      record("max", y, {input}, [plan, indices, shape = x.shape()](Gradients& g) {
        const Tensor& dy = g.output();
        const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device(), "max");
        visit_pointwise("max", dy, [&]<class T>(std::type_identity<T>, auto stream) {
          max_backward(dx.data<T>(), dy.data<T>(), indices.data<int64_t>(), plan.extents, stream);
        });
        g.add(0, dx);
      });
  return {values, indices};
}

}  // namespace quern
