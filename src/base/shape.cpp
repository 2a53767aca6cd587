#include "base/shape.h"

#include <algorithm>
#include <ostream>

#include "base/error.h"

namespace quern {

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims) push_back(dim);
}

void Shape::push_back(int64_t dim) {
  QUERN_CHECK(ndim_ < kMaxDims, "shape: more than ", kMaxDims, " dimensions");
  dims_[static_cast<size_t>(ndim_++)] = dim;
}

int64_t Shape::numel() const {
  constexpr int64_t kMost = INT64_MAX / 8;  // elements of 8 bytes
  int64_t product = 1;
  bool fits = true;
  for (const int64_t dim : *this) {
    if (dim == 0) return 0;
    fits = fits && !__builtin_mul_overflow(product, dim, &product) && product <= kMost;
  }
  QUERN_CHECK(fits, "shape ", str(), " has more elements than 64 bits can address");
  return product;
}

int Shape::axis(int dim) const {
  const int axis = dim < 0 ? dim + ndim_ : dim;
  QUERN_CHECK(axis >= 0 && axis < ndim_, "dimension ", dim, " is out of range for shape ", str());
  return axis;
}

std::string Shape::str() const {
  std::string text = "(";
  for (int i = 0; i < ndim_; ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
  return text + ")";
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  int64_t step = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  const int ndim = std::max(a.ndim(), b.ndim());
  Shape out;
  for (int i = 0; i < ndim; ++i) {
    const int ia = i - (ndim - a.ndim()), ib = i - (ndim - b.ndim());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    QUERN_CHECK(da == db || da == 1 || db == 1, op, ": shapes ", a, " and ", b,
                " do not broadcast: dimension ", i, " is ", da, " and ", db);
    out.push_back(da == 1 ? db : da);
  }
  return out;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.str();
}

}  // namespace quern
