// Eigen's matrix product over plain row-major memory, on the calling thread: the kernels split the
// work themselves, because Eigen's own threading blocks a product by the number of threads, which
// would change its last bits.
#pragma once

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <cstdint>

namespace quern::kernels::cpu {

template <class A, int Order>
using MatrixMap =
    Eigen::Map<Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Order>, 0, Eigen::OuterStride<>>;
template <class A, int Order>
using ConstMatrixMap = Eigen::Map<const Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Order>, 0,
                                  Eigen::OuterStride<>>;

// A matrix in memory: `stride` elements between its stored rows.
template <class A>
struct Operand {
  const A* data;
  int64_t stride;
  bool transposed = false;  // stored as its transpose
};

// D (m, n) = alpha A (m, k) B (k, n), += when `add`.
template <class A>
void multiply(A* d, int64_t stride, const Operand<A>& a, const Operand<A>& b, int64_t m, int64_t n,
              int64_t k, A alpha, bool add) {
  using Eigen::ColMajor;
  using Eigen::RowMajor;
  MatrixMap<A, RowMajor> D(d, m, n, Eigen::OuterStride<>(stride));
  const auto product = [&](const auto& left, const auto& right) {
    if (add) {
      D.noalias() += alpha * left * right;
    } else {
      D.noalias() = alpha * left * right;
    }
  };
  const auto with_right = [&](const auto& left) {
    if (b.transposed) {
      product(left, ConstMatrixMap<A, ColMajor>(b.data, k, n, Eigen::OuterStride<>(b.stride)));
    } else {
      product(left, ConstMatrixMap<A, RowMajor>(b.data, k, n, Eigen::OuterStride<>(b.stride)));
    }
  };
  if (a.transposed) {
    with_right(ConstMatrixMap<A, ColMajor>(a.data, m, k, Eigen::OuterStride<>(a.stride)));
  } else {
    with_right(ConstMatrixMap<A, RowMajor>(a.data, m, k, Eigen::OuterStride<>(a.stride)));
  }
}

}  // namespace quern::kernels::cpu
