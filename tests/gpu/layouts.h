// Broadcast layouts that the binary and mask tests share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/binary.h"

namespace quern::test {

struct LayoutCase {
  std::string name;
  kernels::BinaryLayout layout;
  int64_t n = 1, a_size = 1, b_size = 1, dc_size = 1;  // elements of the result, inputs, gradient
};

// dc: the gradient's strides; packed when there are none.
inline LayoutCase layout_case(std::string name, std::vector<int64_t> shape, std::vector<int64_t> a,
                              std::vector<int64_t> b, std::vector<int64_t> dc = {}) {
  if (dc.empty()) {
    dc.resize(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) dc[d - 1] = dc[d] * shape[d];
  }
  LayoutCase c;
  c.name = std::move(name);
  c.layout.ndim = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), c.layout.shape);
  std::copy(a.begin(), a.end(), c.layout.a_strides);
  std::copy(b.begin(), b.end(), c.layout.b_strides);
  std::copy(dc.begin(), dc.end(), c.layout.dc_strides);
  for (size_t d = 0; d < shape.size(); ++d) {
    c.n *= shape[d];
    c.a_size += std::max<int64_t>(0, shape[d] - 1) * a[d];
    c.b_size += std::max<int64_t>(0, shape[d] - 1) * b[d];
    c.dc_size += std::max<int64_t>(0, shape[d] - 1) * dc[d];
  }
  return c;
}

inline std::vector<LayoutCase> layout_cases() {
  std::vector<LayoutCase> cases;
  for (const int64_t n : {0, 1, 31, 33, 1025, 1 << 18}) {
    cases.push_back(layout_case("equal shapes, " + std::to_string(n), {n}, {1}, {1}));
  }
  cases.push_back(layout_case("scalars", {}, {}, {}));
  cases.push_back(layout_case("a row added", {33, 64}, {64, 1}, {0, 1}));
  cases.push_back(layout_case("an odd row added", {5, 33}, {33, 1}, {0, 1}));
  cases.push_back(layout_case("a column multiplied", {33, 64}, {64, 1}, {1, 0}));
  cases.push_back(layout_case("scalar on the left", {7, 48}, {0, 0}, {48, 1}));
  cases.push_back(layout_case("outer", {31, 40}, {1, 0}, {0, 1}));
  cases.push_back(layout_case("b transposed", {31, 40}, {40, 1}, {1, 31}));
  cases.push_back(layout_case("both ways", {3, 4, 5, 16}, {64, 16, 0, 1}, {0, 80, 16, 1}));
  cases.push_back(layout_case("a slice of wider rows", {9, 24}, {40, 1}, {32, 1}));
  cases.push_back(layout_case("dc in wider rows", {9, 24}, {24, 1}, {24, 1}, {40, 1}));
  cases.push_back(layout_case("dc transposed", {31, 40}, {40, 1}, {0, 1}, {1, 31}));
  cases.push_back(layout_case("dc repeated", {33, 64}, {64, 1}, {64, 1}, {1, 0}));
  cases.push_back(
      layout_case("heads", {2, 5, 3, 16}, {240, 48, 16, 1}, {0, 16, 0, 1}, {240, 16, 80, 1}));
  return cases;
}

}  // namespace quern::test
