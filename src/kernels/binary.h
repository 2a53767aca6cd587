// The binary family: c = f(a, b) with broadcasting, one functor per op (common/binary_math.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/stream.h"
#include "kernels/common/binary_math.h"

namespace quern::kernels {

struct BinaryLayout {
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t a_strides[kMaxDims] = {};  // 0 where a is broadcast
  int64_t b_strides[kMaxDims] = {};
  int64_t dc_strides[kMaxDims] = {};  // only for the backward
};

namespace cpu {
// c = f.forward(a, b) over layout.shape; c is contiguous, a and b have any strides. c may be a or b
// if that is contiguous. T as in pointwise.h.
template <class T>
void binary_forward(T* c, const T* a, const T* b, const BinaryLayout& layout, const BinaryOp& f,
                    Stream stream);

// The gradients before they are summed over broadcast dimensions: da and db (contiguous,
// layout.shape; either may be null). dc has any strides. a is read only for db; a or b may be null
// if f does not read it.
template <class T>
void binary_backward(T* da, T* db, const T* a, const T* b, const T* dc, const BinaryLayout& layout,
                     const BinaryOp& f, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void binary_forward(T* c, const T* a, const T* b, const BinaryLayout& layout, const BinaryOp& f,
                    Stream stream);
template <class T>
void binary_backward(T* da, T* db, const T* a, const T* b, const T* dc, const BinaryLayout& layout,
                     const BinaryOp& f, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
