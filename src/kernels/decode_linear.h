// y = x w^T for a few rows x, for decoding. Bound by reading w (out, in) once, so the same pass
// computes the ops before the product (RMSNorm of the residual stream) and after it (bias, residual
// add, SwiGLU). Rounds to T where separate kernels would store a T. On a GPU the bits of a row's
// result do not depend on the other rows or their number.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// The use of the products of x's rows and w's rows.
enum class DecodeOutput : uint8_t {
  store,   // y (rows, out), plus bias if there is one
  add,     // added to the residual stream (rows, out)
  swiglu,  // y (rows, out / 2): silu of the first half of the products times the second half
};

// T: float or bfloat16, the type of activations and weights. The residual stream is of T, or FP32.
template <class T>
struct DecodeLinear {
  int64_t rows = 0, in = 0, out = 0;
  const T* w = nullptr;         // (out, in)
  const T* x = nullptr;         // (rows, in); null: the norm of the stream
  const float* norm = nullptr;  // (in): the norm's weight
  double eps = 0.0;             // the norm's
  const T* bias = nullptr;      // (out), or null; for `store`
  void* stream = nullptr;       // (rows, in) of the norm, or (rows, out) of `add`
  bool fp32_stream = false;     // else T
  DecodeOutput output = DecodeOutput::store;
  T* y = nullptr;
};

namespace cpu {
// `early`: on a GPU, starts and fetches weights while the previous kernel on the stream still runs.
// Kernels still running must not write w, norm or bias.
template <class T>
void decode_linear(const DecodeLinear<T>& linear, Stream stream, bool early = false);

// Whether x may have rows of `in` elements of T, with or without a norm: on a GPU a row must fit in
// a block's shared memory.
template <class T>
bool decode_linear_fits(int64_t in, bool norm, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void decode_linear(const DecodeLinear<T>& linear, Stream stream, bool early = false);
template <class T>
bool decode_linear_fits(int64_t in, bool norm, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
