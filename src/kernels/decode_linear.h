// y = x w^T for a few rows x, as decoding needs it: bound by reading w (out, in) once, so what
// stands before the product (RMSNorm of the residual stream) and behind it (bias, residual add,
// SwiGLU) is computed in the same pass. Rounds to T where separate kernels would store a T. A row's
// result does not depend, bit for bit, on the other rows or on how many there are.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// What becomes of a product of a row of x with a row of w.
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
// `early`: on a GPU, starts while the kernel before it on the stream still runs, and fetches
// weights meanwhile. Nothing on the stream may still be writing w, norm or bias then.
template <class T>
void decode_linear(const DecodeLinear<T>& linear, Stream stream, bool early = false);

// Whether x may have rows of so many elements of T, with a norm or without: on a GPU one has to fit
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
