#include "autograd/ops/matrix_product.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "autograd/ops/op_checks.h"
#include "kernels/binary.h"
#include "kernels/gemm.h"
#include "tensor/visit.h"

namespace quern::detail {

namespace {

// An operand's layout for kernels::gemm.
struct Layout {
  bool transpose = false;
  int64_t ld = 0;      // elements between stored rows
  int64_t stride = 0;  // elements between matrices
};

struct Operand {
  Tensor x;
  Layout layout;
};

// The fixed distance between the matrices of x (..., R, C), if there is one.
std::optional<int64_t> matrix_stride(const Tensor& x) {
  int64_t stride = 0, next = 0;
  bool first = true;
  for (int i = x.ndim() - 3; i >= 0; --i) {
    if (x.shape()[i] == 1) continue;
    if (first) stride = x.strides()[i];
    if (!first && x.strides()[i] != next) return std::nullopt;
    first = false;
    next = x.strides()[i] * x.shape()[i];
  }
  return stride;
}

// Whether rows of `cols` elements at distance `step` are packed and do not overlap.
bool is_row_major(int64_t rows, int64_t cols, int64_t row_step, int64_t col_step) {
  return (cols == 1 || col_step == 1) && (rows == 1 || row_step >= std::max<int64_t>(cols, 1));
}

std::optional<Layout> layout_of(const Tensor& x, bool transpose) {
  const int64_t rows = x.dim(-2), cols = x.dim(-1);
  const int64_t row_step = x.strides()[x.ndim() - 2], col_step = x.strides()[x.ndim() - 1];
  const std::optional<int64_t> stride = matrix_stride(x);
  if (stride && is_row_major(rows, cols, row_step, col_step)) {
    return Layout{transpose, rows == 1 ? cols : row_step, *stride};
  }
  if (stride && is_row_major(cols, rows, col_step, row_step)) {  // stored transposed
    return Layout{!transpose, col_step, *stride};
  }
  return std::nullopt;
}

Operand as_operand(const Tensor& x_in, bool transpose) {
  const Tensor x = product_operand(x_in);
  return {x, layout_of(x, transpose).value()};
}

template <class TD, class T, class Stream>
void run(const Tensor& d, const Operand& a, const Operand& b, kernels::Gemm g, int64_t products,
         const Tensor& bias, const kernels::GemmResources& resources, Stream stream) {
  if (bias.defined()) g.bias = bias.raw_data();
  const bool fused = gemm_adds_bias(g, dtype_of<T>, dtype_of<TD>, stream);
  if (!fused) g.bias = nullptr;
  for (int64_t i = 0; i < products; ++i) {
    gemm(d.data<TD>(), a.x.data<T>() + i * a.layout.stride, b.x.data<T>() + i * b.layout.stride, g,
         resources, stream);
    g.beta = 1.0;
  }
  if (bias.defined() && !fused) add_bias(d, bias);
}

}  // namespace

void add_bias(const Tensor& y, const Tensor& b) {
  kernels::BinaryLayout layout;
  layout.ndim = 2;
  for (int i = 0; i < 2; ++i) {
    layout.shape[i] = y.dim(i);
    layout.a_strides[i] = y.strides()[i];
  }
  layout.b_strides[1] = b.strides()[0];
  visit_pointwise("matmul", y, [&]<class T>(std::type_identity<T>, auto stream) {
    binary_forward(y.data<T>(), y.data<T>(), b.data<T>(), layout, kernels::Add{}, stream);
  });
}

ProductResources product_resources(int64_t scratch_bytes, Device device) {
  ProductResources made{Context::current().gemm(), {}};
  made.gemm.scratch_bytes = scratch_bytes;
  if (scratch_bytes > 0) {
    made.scratch = scratch(scratch_bytes, device);
    made.gemm.scratch = made.scratch.raw_data();
  }
  return made;
}

Tensor product_operand(const Tensor& x) {
  return layout_of(x, false) ? x : x.clone("matmul operand");
}

void matrix_product(const Tensor& d, const Tensor& a_in, bool transpose_a, const Tensor& b_in,
                    bool transpose_b, bool add, const Tensor& bias_in) {
  if (d.numel() == 0) return;
  QUERN_CHECK(d.is_contiguous() || (d.ndim() == 2 && d.strides()[1] == 1),
              "matrix_product: d has shape ", d.shape(), " and neither is contiguous nor has rows ",
              "that are");
  QUERN_CHECK(d.is_contiguous() || !bias_in.defined(),
              "matrix_product: d has space between its rows, and there is a bias");
  const int64_t batch = std::max(count_leading(a_in.shape(), 2), count_leading(b_in.shape(), 2));
  if (d.ndim() == 2 && batch > 1 && d.dtype() == DType::bf16) {  // the sum is rounded once
    const Tensor sum = add ? d.to(DType::f32) : Tensor::empty(d.shape(), DType::f32, d.device());
    matrix_product(sum, a_in, transpose_a, b_in, transpose_b, add);
    copy(d, sum);
    if (bias_in.defined()) add_bias(d, bias_in);
    return;
  }
  const Tensor bias = bias_in.defined() ? bias_in.contiguous() : Tensor();
  if (a_in.numel() == 0) {  // an empty sum: b is empty too
    if (!add) fill(d, 0.0);
    if (bias.defined()) add_bias(d, bias);
    return;
  }
  const Operand a = as_operand(a_in, transpose_a), b = as_operand(b_in, transpose_b);
  kernels::Gemm g;
  g.m = d.dim(-2);
  g.n = d.dim(-1);
  g.k = a_in.dim(transpose_a ? -2 : -1);
  g.transpose_a = a.layout.transpose;
  g.transpose_b = b.layout.transpose;
  g.lda = a.layout.ld;
  g.ldb = b.layout.ld;
  g.ldd = d.ndim() == 2 && g.m > 1 ? d.strides()[0] : g.n;
  g.batch = batch;
  g.stride_a = a.layout.stride;
  g.stride_b = b.layout.stride;
  g.stride_d = g.m * g.n;
  g.beta = add ? 1.0 : 0.0;
  const OpOptions& options = Context::current().options;
  g.math = options.tf32() ? kernels::MatmulMath::tf32 : kernels::MatmulMath::fp32;
  g.split = options.fp32_products == Fp32Products::split;
  const int64_t products = d.ndim() == 2 ? std::exchange(g.batch, 1) : 1;
  const ProductResources made = product_resources(
      decide(d.device(), [&](auto stream) { return gemm_scratch(g, a.x.dtype(), stream); }),
      d.device());
  const kernels::GemmResources& resources = made.gemm;
  visit("matmul", a.x, [&]<class T>(std::type_identity<T>, auto stream) {
    if (d.dtype() == dtype_of<T>) return run<T, T>(d, a, b, g, products, bias, resources, stream);
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (d.dtype() == DType::f32) {
        return run<float, T>(d, a, b, g, products, bias, resources, stream);
      }
    }
    fail(cat("matmul: cannot accumulate products of ", a.x.dtype(), " in ", d.dtype()));
  });
}

}  // namespace quern::detail
