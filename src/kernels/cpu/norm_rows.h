// RMSNorm and LayerNorm (kCentred: LayerNorm, which has a mean and a bias). One row at a time stays
// in the cache, so memory is read and written once, and LayerNorm's variance is taken in a second
// pass over the row; the weights' gradients are summed over chunks of rows.
#pragma once

#include <cmath>

#include "base/dtype.h"
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {

// y of a row's C elements whose statistics are known.
template <bool kCentred, class TX, class TY>
void write_normed(TY* y, const TX* x, const acc_t<TY>* w, const acc_t<TY>* b, acc_t<TY> mean,
                  acc_t<TY> rstd, int64_t C) {
  using A = acc_t<TY>;
  vector_for(0, C, [=](int64_t c) {
    const A distance = kCentred ? static_cast<A>(x[c]) - mean : static_cast<A>(x[c]);
    const A out = w[c] * (distance * rstd);
    y[c] = static_cast<TY>(kCentred ? out + b[c] : out);
  });
}

// y, rstd and, where kCentred, mean of one row.
template <bool kCentred, class TX, class TY>
void normalize_row(TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x, const acc_t<TY>* w,
                   const acc_t<TY>* b, int64_t C, double eps) {
  using A = acc_t<TY>;
  const A extent = static_cast<A>(C);
  A m = 0;
  if constexpr (kCentred) {
    m = lane_sum<A>(C, [=](int64_t c) { return static_cast<A>(x[c]); }) / extent;
    *mean = m;
  }
  const auto distance = [=](int64_t c) {
    return kCentred ? static_cast<A>(x[c]) - m : static_cast<A>(x[c]);
  };
  const A squares = lane_sum<A>(C, [=](int64_t c) { return distance(c) * distance(c); });
  const A scale = A(1) / std::sqrt(squares / extent + static_cast<A>(eps));
  *rstd = scale;
  write_normed<kCentred>(y, x, w, b, m, scale, C);
}

// add_rms_norm_forward or add_layer_norm_forward. A null branch leaves out the residual add.
template <bool kCentred, class TX, class TY>
void norm_forward(TX* sum, TY* y, acc_t<TY>* mean, acc_t<TY>* rstd, const TX* x, const TY* branch,
                  const acc_t<TY>* w, const acc_t<TY>* b, int64_t rows, int64_t C, double eps) {
  using A = acc_t<TY>;
  parallel_rows(rows, C, [=](int64_t r) {
    const TX* row = x + r * C;
    if (branch != nullptr) {
      TX* total = sum + r * C;
      const TY* other = branch + r * C;
      vector_for(0, C, [=](int64_t c) {
        total[c] = static_cast<TX>(static_cast<A>(row[c]) + static_cast<A>(other[c]));
      });
      row = total;
    }
    normalize_row<kCentred>(y + r * C, kCentred ? mean + r : nullptr, rstd + r, row, w, b, C, eps);
  });
}

// Writes dx, and adds the row's share of dw (kCentred: followed by that of db) to sums unless null.
template <bool kCentred, class TX, class TY>
void norm_row_gradient(TX* dx, acc_t<TY>* sums, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, acc_t<TY> mean, acc_t<TY> rstd, int64_t C) {
  using A = acc_t<TY>;
  const A extent = static_cast<A>(C);
  const auto z = [=](int64_t c) {
    return (kCentred ? static_cast<A>(x[c]) - mean : static_cast<A>(x[c])) * rstd;
  };
  const auto g = [=](int64_t c) { return w[c] * static_cast<A>(dy[c]); };
  const A mean_g = kCentred ? lane_sum<A>(C, g) / extent : A(0);
  const A mean_gz = lane_sum<A>(C, [=](int64_t c) { return g(c) * z(c); }) / extent;
  if (sums != nullptr) {  // before dx, which may lie over dsum but never over x or dy
    vector_for(0, C, [=](int64_t c) {
      sums[c] += static_cast<A>(dy[c]) * z(c);
      if constexpr (kCentred) sums[C + c] += static_cast<A>(dy[c]);
    });
  }
  const auto through_norm = [=](int64_t c) {
    return rstd * ((kCentred ? g(c) - mean_g : g(c)) - z(c) * mean_gz);
  };
  if (dsum == nullptr) {
    vector_for(0, C, [=](int64_t c) { dx[c] = static_cast<TX>(through_norm(c)); });
  } else {
    vector_for(0, C, [=](int64_t c) {
      dx[c] = static_cast<TX>(static_cast<A>(dsum[c]) + through_norm(c));
    });
  }
}

// rms_norm_backward or layer_norm_backward. scratch: kCentred + 1 times partial_sum_bytes.
template <bool kCentred, class TX, class TY>
void norm_backward(TX* dx, acc_t<TY>* dw, acc_t<TY>* db, const TY* dy, const TX* dsum, const TX* x,
                   const acc_t<TY>* w, const acc_t<TY>* mean, const acc_t<TY>* rstd, int64_t rows,
                   int64_t C, bool add_dw, bool add_db, void* scratch) {
  using A = acc_t<TY>;
  const int64_t width = kCentred ? 2 * C : C;  // both gradients side by side
  A* const partial = dw == nullptr && db == nullptr ? nullptr : static_cast<A*>(scratch);
  for_row_chunks(rows, width, partial, [=](int64_t begin, int64_t end, A* sums) {
    for (int64_t r = begin; r < end; ++r) {
      norm_row_gradient<kCentred>(dx + r * C, sums, dy + r * C,
                                  dsum == nullptr ? nullptr : dsum + r * C, x + r * C, w,
                                  kCentred ? mean[r] : A(0), rstd[r], C);
    }
  });
  if (dw != nullptr) fold_chunks(dw, partial, rows, C, width, add_dw);
  if (db != nullptr) fold_chunks(db, partial + C, rows, C, width, add_db);
}

}  // namespace quern::kernels::cpu
