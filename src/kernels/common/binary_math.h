// The binary ops' mathematics, one functor per op: forward(a, b), and the gradient with respect to
// each. kReadsA and kReadsB name the inputs that the backward needs; da reads at most b. BinaryOp
// lists all functors.
#pragma once

#include <variant>

#include "base/host_device.h"

namespace quern::kernels {

struct Add {
  static constexpr bool kReadsA = false, kReadsB = false;
  QUERN_HD auto forward(auto a, auto b) const { return a + b; }
  QUERN_HD auto da(auto, auto dc) const { return dc; }
  QUERN_HD auto db(auto, auto, auto dc) const { return dc; }
};

struct Sub {
  static constexpr bool kReadsA = false, kReadsB = false;
  QUERN_HD auto forward(auto a, auto b) const { return a - b; }
  QUERN_HD auto da(auto, auto dc) const { return dc; }
  QUERN_HD auto db(auto, auto, auto dc) const { return -dc; }
};

struct Mul {
  static constexpr bool kReadsA = true, kReadsB = true;
  QUERN_HD auto forward(auto a, auto b) const { return a * b; }
  QUERN_HD auto da(auto b, auto dc) const { return dc * b; }
  QUERN_HD auto db(auto a, auto, auto dc) const { return dc * a; }
};

struct Div {
  static constexpr bool kReadsA = true, kReadsB = true;
  QUERN_HD auto forward(auto a, auto b) const { return a / b; }
  QUERN_HD auto da(auto b, auto dc) const { return dc / b; }
  QUERN_HD auto db(auto a, auto b, auto dc) const { return -dc * a / (b * b); }
};

// alpha a + beta b
struct Axpby {
  double alpha = 1.0, beta = 1.0;
  static constexpr bool kReadsA = false, kReadsB = false;
  template <class A>
  QUERN_HD A forward(A a, A b) const {
    return A(alpha) * a + A(beta) * b;
  }
  template <class A>
  QUERN_HD A da(A, A dc) const {
    return A(alpha) * dc;
  }
  template <class A>
  QUERN_HD A db(A, A, A dc) const {
    return A(beta) * dc;
  }
};

// alpha a + beta b^2
struct AxpbySquare {
  double alpha = 1.0, beta = 1.0;
  static constexpr bool kReadsA = false, kReadsB = true;
  template <class A>
  QUERN_HD A forward(A a, A b) const {
    return A(alpha) * a + A(beta) * (b * b);
  }
  template <class A>
  QUERN_HD A da(A, A dc) const {
    return A(alpha) * dc;
  }
  template <class A>
  QUERN_HD A db(A, A b, A dc) const {
    return A(2 * beta) * b * dc;
  }
};

// The family: both backends compile their kernels for each of these.
using BinaryOp = std::variant<Add, Sub, Mul, Div, Axpby, AxpbySquare>;

}  // namespace quern::kernels
