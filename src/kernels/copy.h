// Fills, strided copies and conversions, for views, casts and gradient accumulation.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/stream.h"

namespace quern::kernels {

struct StridedCopy {
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t dst_strides[kMaxDims] = {};
  int64_t src_strides[kMaxDims] = {};
};

namespace cpu {
// dst[i...] = convert(src[i...]). Strides are in elements; 0 repeats. Any pair of dtypes: floats
// round to nearest even, float to integer truncates, i64 to i32 saturates, anything to bool is
// `!= 0`.
void copy(void* dst, DType dst_type, const void* src, DType src_type, const StridedCopy& layout,
          Stream stream);

// dst[0..n) = value, converted.
void fill(void* dst, DType dtype, int64_t n, double value, Stream stream);

// dst = src, or dst += src when `add`; contiguous. The sum is taken in acc_t<D>.
// Instances (D, S): (float, float), (float, bfloat16), (bfloat16, bfloat16),
// (float16, float16), and on the CPU (double, double).
template <class D, class S>
void accumulate(D* dst, const S* src, int64_t n, bool add, Stream stream);
}  // namespace cpu

namespace cuda {
void copy(void* dst, DType dst_type, const void* src, DType src_type, const StridedCopy& layout,
          Stream stream);
void fill(void* dst, DType dtype, int64_t n, double value, Stream stream);
template <class D, class S>
void accumulate(D* dst, const S* src, int64_t n, bool add, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
