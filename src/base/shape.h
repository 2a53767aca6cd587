// A tensor's extents, outermost first: at most kMaxDims, without heap memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace quern {

inline constexpr int kMaxDims = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int ndim() const { return ndim_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  int64_t back() const { return dims_[static_cast<size_t>(ndim_ - 1)]; }

  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + ndim_; }

  void push_back(int64_t dim);
  int64_t numel() const;    // 1 for a scalar (no dimensions)
  int axis(int dim) const;  // -1 means the last; throws when out of range
  std::string str() const;  // "(2, 3)"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

// Same type, other meaning: elements (not bytes) between neighbours along each dimension.
using Strides = Shape;

Strides contiguous_strides(const Shape& shape);
// NumPy's rule: shapes align at the right, and extents of 1 stretch. Throws an error that names
// `op` when the shapes do not fit.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace quern
