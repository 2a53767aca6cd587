// FP8 products of linear layers: their operands, made from BF16 tensors or from the inputs of the
// op that computes these, and the product itself.
//
// The recipe: E4M3 throughout, and a scale for each block of 128 elements of the summed dimension.
// Activations have blocks of one row (a token's channels or a channel's tokens), so that an outlier
// costs precision only in its own row. Weights, whose values differ little, have tiles of 128 rows.
// So do gradients in the weight-gradient product, which sums over tokens: cuBLASLt multiplies rows
// by tiles a third faster than rows by rows.
#pragma once

#include "autograd/fp8_tensor.h"
#include "autograd/saved.h"
#include "autograd/tape.h"
#include "base/scoped_value.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace quern {

// While one with `on` exists, linear() of BF16 tensors multiplies in FP8, forward and backward.
class Fp8Products : ScopedValue<bool> {
 public:
  explicit Fp8Products(bool on) : ScopedValue(Context::current().fp8_products, on) {}
};

namespace detail {

bool multiplies_in_fp8(const Tensor& x);  // whether linear(x, w) does

// The role of an operand in a product, which selects its scales: see the recipe.
enum class Fp8Operand : uint8_t { activation, gradient, weight };

// Selects a matrix and its transpose; only selected ones get values.
struct Fp8Wanted {
  bool matrix = true, transpose = true;
};
struct Fp8Pair {
  Fp8Tensor matrix, transpose;
};

Fp8Pair quantize(const Tensor& x, Fp8Operand operand, Fp8Wanted wanted);  // x (rows, cols)

// A norm's output, an activation, from tensors that its forward kept: x (rows, C) of the residual
// stream's type, rstd and, for LayerNorm, mean of each row; b and mean are undefined for RMSNorm.
struct NormTensors {
  Tensor x, w, b, mean, rstd;
};
Fp8Pair quantize_norm(const NormTensors& norm, Fp8Wanted wanted);

// SwiGLU's output, an activation, and gate_up's gradient: gate_up (N, 2 F), dy (N, F).
Fp8Pair quantize_swiglu(const Tensor& gate_up, Fp8Wanted wanted);
struct SwigluGradientWanted {
  bool matrix = true, transpose = true;
  bool output_transpose = false;  // of SwiGLU's output
};
struct SwigluGradientInFp8 {
  Fp8Pair gradient;
  Fp8Tensor output;  // transposed
};
SwigluGradientInFp8 quantize_swiglu_gradient(const Tensor& gate_up, const Tensor& dy,
                                             SwigluGradientWanted wanted);

// A weight w (out, in) as the operand of x w^T, and w^T as that of dy w.
Fp8Tensor fp8_weight(const Tensor& w);
Fp8Tensor turned_fp8_weight(const Tensor& w);

// Whether a backward will want the gradient of x.
bool will_differentiate(const Variable& x);

// A layer's input x, for the gradient of its weight w: x^T in FP8, made with the forward's operand;
// or made again from x's recipe if x carries one; or nothing if w needs no gradient.
class SavedTranspose {
 public:
  SavedTranspose(const Variable& x, const Variable& w);
  Fp8Tensor quantize(const Tensor& rows);  // x as rows: the forward's operand. Call it once.
  // The gradients of x (input 0) and w (input 1) in y = x w^T, as wanted; `dy` loses its transpose.
  // Call it once.
  void differentiate(Gradients& g, Fp8Pair& dy, const Tensor& w);

 private:
  Fp8Tensor take();  // x^T. Call it once.

  Saved x_;
  bool wanted_;
  Fp8Tensor made_;
};

// d = a b^T, or d += a b^T when `add`: a (M, K), b (N, K), d (M, N) contiguous, bf16 or f32.
void fp8_product(const Tensor& d, const Fp8Tensor& a, const Fp8Tensor& b, bool add = false);

}  // namespace detail

}  // namespace quern
