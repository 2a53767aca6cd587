// A walk over an index space that several operands share, each with its own strides. Neighbouring
// dimensions are merged where every operand allows it; the rest is walked as rows along the
// innermost dimension.
#pragma once

#include <array>
#include <cstdint>

#include "base/shape.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

template <int N>
class StridedWalk {
 public:
  using Offsets = std::array<int64_t, N>;

  StridedWalk(int ndim, const int64_t* shape, const std::array<const int64_t*, N>& strides) {
    for (int i = ndim - 1; i >= 0; --i) {
      numel_ *= shape[i];
      if (shape[i] != 1) add_dimension(shape[i], strides, i);
    }
    if (ndim_ == 0) extent_[ndim_++] = 1;
  }

  int64_t col_stride(int operand) const { return stride_[operand][0]; }

  // Calls body(position, offsets, count) on all cores until every element is covered. A call covers
  // `count` elements from row-major position `position` on; operand k's first is at offsets[k], the
  // next ones are col_stride(k) apart.
  template <class Body>
  void parallel_spans(const Body& body) const {
    const int64_t cols = this->cols();
    if (cols <= kGrain) {
      parallel_for(rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
        for_rows(begin, end, [&](int64_t row, const Offsets& at) { body(row * cols, at, cols); });
      });
      return;
    }
    for_rows(0, rows(), [&](int64_t row, const Offsets& start) {
      parallel_for(cols, kGrain, [&](int64_t begin, int64_t end) {
        Offsets at = start;
        for (int k = 0; k < N; ++k) at[k] += begin * stride_[k][0];
        body(row * cols + begin, at, end - begin);
      });
    });
  }

 private:
  int64_t cols() const { return extent_[0]; }
  int64_t rows() const { return extent_[0] == 0 ? 0 : numel_ / extent_[0]; }

  // Calls body(row, offsets) for rows [begin, end), with the start of each operand's row.
  template <class Body>
  void for_rows(int64_t begin, int64_t end, const Body& body) const {
    int64_t index[kMaxDims] = {};
    Offsets offsets{};
    int64_t rest = begin;
    for (int d = 1; d < ndim_; ++d) {
      index[d] = rest % extent_[d];
      rest /= extent_[d];
      for (int k = 0; k < N; ++k) offsets[k] += index[d] * stride_[k][d];
    }
    for (int64_t row = begin; row < end; ++row) {
      body(row, offsets);
      for (int d = 1; d < ndim_; ++d) {  // count up, carrying
        for (int k = 0; k < N; ++k) offsets[k] += stride_[k][d];
        if (++index[d] < extent_[d]) break;
        for (int k = 0; k < N; ++k) offsets[k] -= extent_[d] * stride_[k][d];
        index[d] = 0;
      }
    }
  }

  // Dimensions are kept innermost first.
  void add_dimension(int64_t extent, const std::array<const int64_t*, N>& strides, int i) {
    bool merges = ndim_ > 0;
    for (int k = 0; k < N && merges; ++k) {
      merges = strides[k][i] == stride_[k][ndim_ - 1] * extent_[ndim_ - 1];
    }
    if (merges) {
      extent_[ndim_ - 1] *= extent;
      return;
    }
    extent_[ndim_] = extent;
    for (int k = 0; k < N; ++k) stride_[k][ndim_] = strides[k][i];
    ++ndim_;
  }

  int ndim_ = 0;
  int64_t extent_[kMaxDims] = {};
  int64_t stride_[N][kMaxDims] = {};
  int64_t numel_ = 1;
};

}  // namespace quern::kernels::cpu
