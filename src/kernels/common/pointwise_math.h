// The pointwise ops' mathematics, one functor per op: forward(x), backward(x, y, dy), and which of
// x and y the backward reads. The computing type is float or double.
#pragma once

#include <cmath>
#include <variant>

#include "base/host_device.h"
#include "kernels/common/math.h"

namespace quern::kernels {

enum class Saved { none, input, output };

struct Exp {
  static constexpr Saved kSaved = Saved::output;
  QUERN_HD auto forward(auto x) const { return math::exp(x); }
  QUERN_HD auto backward(auto, auto y, auto dy) const { return dy * y; }
};

struct Log {
  static constexpr Saved kSaved = Saved::input;
  QUERN_HD auto forward(auto x) const { return math::log(x); }
  QUERN_HD auto backward(auto x, auto, auto dy) const { return dy / x; }
};

struct Tanh {
  static constexpr Saved kSaved = Saved::output;
  QUERN_HD auto forward(auto x) const { return math::tanh(x); }
  QUERN_HD auto backward(auto, auto y, auto dy) const { return dy * (1 - y * y); }
};

struct Sigmoid {  // 1 / (1 + exp(-x))
  static constexpr Saved kSaved = Saved::output;
  QUERN_HD auto forward(auto x) const { return math::sigmoid(x); }
  QUERN_HD auto backward(auto, auto y, auto dy) const { return dy * y * (1 - y); }
};

struct Relu {
  static constexpr Saved kSaved = Saved::output;
  QUERN_HD auto forward(auto x) const {
    return x <= 0 ? 0 : x;  // NaN, which is not <= 0, stays NaN
  }
  QUERN_HD auto backward(auto, auto y, auto dy) const { return y > 0 ? dy : 0; }
};

struct Silu {  // x sigmoid(x)
  static constexpr Saved kSaved = Saved::input;
  QUERN_HD auto forward(auto x) const { return x * math::sigmoid(x); }
  // The sum is spelled as a fused multiply-add: GCC makes one of it in some loops only.
  template <class A>
  QUERN_HD A backward(A x, A, A dy) const {
    const A s = math::sigmoid(x);
    return dy * s * std::fma(x, A(1) - s, A(1));
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): Hendrycks and Gimpel,
// 2016. The sigmoid needs one power and loses no digits where tanh(u) is near -1.
struct GeluTanh {
  static constexpr Saved kSaved = Saved::input;
  QUERN_HD auto forward(auto x) const { return x * share(x); }
  template <class A>
  QUERN_HD A backward(A x, A, A dy) const {
    const A s = share(x), slope = A(kTwice) * (A(1) + A(3 * kCubic) * x * x);
    return dy * (s + x * s * (A(1) - s) * slope);
  }

 private:
  static constexpr double kTwice = 1.59576912160573071176;  // 2 sqrt(2/pi)
  static constexpr double kCubic = 0.044715;
  template <class A>
  QUERN_HD static A share(A x) {
    return math::sigmoid(A(kTwice) * x * (A(1) + A(kCubic) * x * x));
  }
};

// x Phi(x), Phi the normal distribution function.
struct GeluErf {
  static constexpr Saved kSaved = Saved::input;
  QUERN_HD auto forward(auto x) const { return x * phi(x); }
  template <class A>
  QUERN_HD A backward(A x, A, A dy) const {
    const A density = A(0.39894228040143267794) * math::exp(A(-0.5) * x * x);
    return dy * (phi(x) + x * density);
  }

 private:
  template <class A>
  QUERN_HD static A phi(A x) {
    return A(0.5) * (A(1) + math::erf(x * A(0.70710678118654752440)));
  }
};

// x^exponent
struct Pow {
  double exponent = 1.0;
  static constexpr Saved kSaved = Saved::input;
  template <class A>
  QUERN_HD A forward(A x) const {
    return exponent == 2.0 ? x * x : math::pow(x, A(exponent));
  }
  template <class A>
  QUERN_HD A backward(A x, A, A dy) const {
    if (exponent == 2.0) return dy * A(2) * x;
    return exponent == 0.0 ? A(0) : dy * A(exponent) * math::pow(x, A(exponent - 1.0));
  }
};

struct Sqrt {
  static constexpr Saved kSaved = Saved::output;
  QUERN_HD auto forward(auto x) const { return math::sqrt(x); }
  QUERN_HD auto backward(auto, auto y, auto dy) const { return dy / (2 * y); }
};

// factor x + offset
struct Scale {
  double factor = 1.0;
  double offset = 0.0;
  static constexpr Saved kSaved = Saved::none;
  template <class A>
  QUERN_HD A forward(A x) const {
    return A(factor) * x + A(offset);
  }
  template <class A>
  QUERN_HD A backward(A, A, A dy) const {
    return A(factor) * dy;
  }
};

// Functions of x alone: the name of the op, its functor.
#define QUERN_POINTWISE_OPS(X) \
  X(exp, Exp)                  \
  X(log, Log)                  \
  X(tanh, Tanh)                \
  X(sigmoid, Sigmoid)          \
  X(relu, Relu)                \
  X(silu, Silu)                \
  X(gelu_tanh, GeluTanh)       \
  X(gelu_erf, GeluErf)         \
  X(sqrt, Sqrt)

// The family: both backends compile their kernels for each of these.
#define QUERN_FUNCTOR(name, Functor) Functor,
using PointwiseOp = std::variant<QUERN_POINTWISE_OPS(QUERN_FUNCTOR) Pow, Scale>;
#undef QUERN_FUNCTOR

inline Saved saved_by(const PointwiseOp& op) {
  return std::visit([]<class F>(const F&) { return F::kSaved; }, op);
}

}  // namespace quern::kernels
