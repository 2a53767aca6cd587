#include "autograd/ops/fp8.h"

#include <utility>

#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "base/slow_path.h"
#include "kernels/quantize.h"
#include "kernels/scaled_gemm.h"
#include "tensor/visit.h"

namespace quern::detail {

namespace {

using kernels::ScaleBlocks;

Fp8Tensor empty_matrix(int64_t rows, int64_t depth, ScaleBlocks blocks, Device device) {
  const int64_t stored_rows = kernels::fp8_extent(rows), stored_depth = kernels::fp8_extent(depth);
  const kernels::ScaleLayout scales{blocks, stored_rows, stored_depth};
  return {Tensor::empty({stored_rows, stored_depth}, DType::u8, device, "fp8 values"),
          Tensor::empty({scales.size()}, DType::f32, device, "fp8 scales"), blocks, rows, depth};
}

kernels::Fp8Output output_of(const Fp8Tensor& x) {
  if (!x.defined()) return {};
  return {static_cast<float8*>(x.values.raw_data()), x.scales.data<float>(), x.blocks};
}

kernels::Fp8Matrix operand_of(const Fp8Tensor& x) {
  return {static_cast<const float8*>(x.values.raw_data()), x.scales.data<float>(), x.blocks};
}

// Memory for what is wanted of a matrix (rows, cols).
Fp8Pair empty_pair(int64_t rows, int64_t cols, Device device, Fp8Operand operand,
                   Fp8Wanted wanted) {
  const ScaleBlocks blocks = operand == Fp8Operand::weight ? ScaleBlocks::tiles : ScaleBlocks::rows;
  const ScaleBlocks turned =
      operand == Fp8Operand::activation ? ScaleBlocks::rows : ScaleBlocks::tiles;
  Fp8Pair made;
  if (wanted.matrix) made.matrix = empty_matrix(rows, cols, blocks, device);
  if (wanted.transpose) made.transpose = empty_matrix(cols, rows, turned, device);
  return made;
}

// start(matrix, transpose, stream) fills what is wanted of a matrix (rows, cols).
template <class Start>
Fp8Pair make_pair(int64_t rows, int64_t cols, Device device, Fp8Operand operand, Fp8Wanted wanted,
                  const Start& start) {
  Fp8Pair made = empty_pair(rows, cols, device, operand, wanted);
  if (rows == 0 || cols == 0) return made;
  on_device(device,
            [&](auto stream) { start(output_of(made.matrix), output_of(made.transpose), stream); });
  return made;
}

// Whether scaled_gemm can write d (M, N) as it is.
bool has_stored_extents(const Tensor& d) {
  return d.dim(0) % kernels::kFp8Padding == 0 && d.dim(1) % kernels::kFp8Padding == 0;
}

void note_padding(const Tensor& d, int64_t depth) {
  constexpr int64_t kSmall = 1 << 27;
  if (!d.device().is_cuda() || d.numel() * depth < kSmall) return;
  note_slow_path(cat("FP8 products with ", d.dim(1), " columns"),
                 cat(d.dim(0), " x ", d.dim(1), " results are computed padded and copied, as ",
                     "multiples of ", kernels::kFp8Padding, " are not"));
}

}  // namespace

bool multiplies_in_fp8(const Tensor& x) {
  return Context::current().fp8_products && x.dtype() == DType::bf16;
}

Fp8Pair quantize(const Tensor& x_in, Fp8Operand operand, Fp8Wanted wanted) {
  const bool packed = x_in.strides()[1] == 1 && x_in.strides()[0] >= x_in.dim(1);
  const Tensor x = packed ? x_in : x_in.contiguous();
  return make_pair(x.dim(0), x.dim(1), x.device(), operand, wanted,
                   [&](const auto& matrix, const auto& transpose, auto stream) {
                     quantize(matrix, transpose, x.data<bfloat16>(), x.dim(0), x.dim(1),
                              x.strides()[0], stream);
                   });
}

Fp8Pair quantize_norm(const NormTensors& norm, Fp8Wanted wanted) {
  const int64_t rows = norm.x.dim(0), C = norm.x.dim(1);
  return make_pair(rows, C, norm.x.device(), Fp8Operand::activation, wanted,
                   [&](const auto& matrix, const auto& transpose, auto stream) {
                     const auto run = [&]<class TX>(const TX* x) {
                       const kernels::NormOutput<TX> output{
                           x, norm.w.data<float>(), data_or_null<float>(norm.b),
                           data_or_null<float>(norm.mean), norm.rstd.data<float>()};
                       quantize_norm(matrix, transpose, output, rows, C, stream);
                     };
                     norm.x.dtype() == DType::f32 ? run(norm.x.data<float>())
                                                  : run(norm.x.data<bfloat16>());
                   });
}

Fp8Pair quantize_swiglu(const Tensor& gate_up, Fp8Wanted wanted) {
  const int64_t rows = gate_up.dim(0), F = gate_up.dim(1) / 2;
  return make_pair(rows, F, gate_up.device(), Fp8Operand::activation, wanted,
                   [&](const auto& matrix, const auto& transpose, auto stream) {
                     quantize_swiglu(matrix, transpose, gate_up.data<bfloat16>(), rows, F, stream);
                   });
}

SwigluGradientInFp8 quantize_swiglu_gradient(const Tensor& gate_up, const Tensor& dy,
                                             SwigluGradientWanted wanted) {
  const int64_t rows = dy.dim(0), F = dy.dim(1);
  const Device device = gate_up.device();
  const Fp8Wanted of_gradient{wanted.matrix, wanted.transpose};
  const Fp8Wanted of_output{.matrix = false, .transpose = wanted.output_transpose};
  SwigluGradientInFp8 made{
      empty_pair(rows, 2 * F, device, Fp8Operand::gradient, of_gradient),
      empty_pair(rows, F, device, Fp8Operand::activation, of_output).transpose};
  if (rows == 0 || F == 0) return made;
  on_device(device, [&](auto stream) {
    quantize_swiglu_gradient(output_of(made.gradient.matrix), output_of(made.gradient.transpose),
                             output_of(made.output), gate_up.data<bfloat16>(), dy.data<bfloat16>(),
                             rows, F, stream);
  });
  return made;
}

Fp8Tensor fp8_weight(const Tensor& w) {
  return quantize(w, Fp8Operand::weight, {.transpose = false}).matrix;
}

Fp8Tensor turned_fp8_weight(const Tensor& w) {
  return quantize(w, Fp8Operand::weight, {.matrix = false}).transpose;
}

bool will_differentiate(const Variable& x) {
  return x.requires_grad() && Context::current().grad_enabled;
}

SavedTranspose::SavedTranspose(const Variable& x, const Variable& w)
    : wanted_(will_differentiate(w)) {
  const Saved saved(x);
  if (wanted_ && saved.has_recipe()) x_ = saved;
}

Fp8Tensor SavedTranspose::quantize(const Tensor& rows) {
  const Fp8Pair made =
      detail::quantize(rows, Fp8Operand::activation, {.transpose = wanted_ && !x_.has_recipe()});
  made_ = made.transpose;
  return made.matrix;
}

Fp8Tensor SavedTranspose::take() {
  if (made_.defined()) return std::exchange(made_, {});
  const Saved x = std::exchange(x_, {});
  if (Fp8Tensor made = x.fp8_transpose(); made.defined()) return made;
  return detail::quantize(as_rows(x.value()), Fp8Operand::activation, {.matrix = false}).transpose;
}

void SavedTranspose::differentiate(Gradients& g, Fp8Pair& dy, const Tensor& w) {
  if (g.needs(1)) {
    const auto [dw, add] = g.target(1);
    fp8_product(dw, std::exchange(dy.transpose, {}), take(), add);
  }
  if (g.needs(0)) {
    const auto [dx, add] = g.target(0);
    fp8_product(as_rows(dx), dy.matrix, turned_fp8_weight(w), add);
  }
}

void fp8_product(const Tensor& d, const Fp8Tensor& a, const Fp8Tensor& b, bool add) {
  if (d.numel() == 0) return;
  QUERN_CHECK(d.is_contiguous() && d.dim(0) == a.rows && d.dim(1) == b.rows && a.depth == b.depth,
              "fp8_product: d has shape ", d.shape(), " and the operands (", a.rows, ", ", a.depth,
              ") and (", b.rows, ", ", b.depth, "), expected (M, N), (M, K) and (N, K)");
  if (a.depth == 0) {
    if (!add) fill(d, 0.0);
    return;
  }
  kernels::ScaledGemm g;
  g.m = a.values.dim(0), g.n = b.values.dim(0), g.k = a.values.dim(1);
  g.beta = add ? 1.0 : 0.0;
  const bool padded = !has_stored_extents(d);
  Tensor whole = d;
  if (padded) {
    whole = Tensor::empty({g.m, g.n}, d.dtype(), d.device(), "fp8 product");
    fill(whole, 0.0);
  }
  const Tensor part = whole.slice(0, 0, d.dim(0)).slice(1, 0, d.dim(1));
  if (add && padded) copy(part, d);
  const ProductResources resources = product_resources(
      decide(d.device(), [&](auto stream) { return scaled_gemm_scratch(g, d.dtype(), stream); }),
      d.device());
  on_device(d.device(), [&](auto stream) {
    if (padded) note_padding(d, a.depth);
    const auto multiply = [&](auto* out) {
      scaled_gemm(out, operand_of(a), operand_of(b), g, resources.gemm, stream);
    };
    d.dtype() == DType::f32 ? multiply(whole.data<float>()) : multiply(whole.data<bfloat16>());
  });
  if (padded) copy(d, part);
}

}  // namespace quern::detail
