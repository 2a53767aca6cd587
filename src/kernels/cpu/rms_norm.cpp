// RMSNorm: y = w x rstd, rstd = 1 / sqrt(mean(x^2) + eps). One row at a time stays in the cache, so
// memory is read and written once; the weights' gradient is summed over chunks of rows.
#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

// y and rstd of one row.
template <class TX, class TY>
acc_t<TY> normalize_row(TY* y, const TX* x, const acc_t<TY>* w, int64_t C, double eps) {
  using A = acc_t<TY>;
  const A sum = lane_sum<A>(C, [=](int64_t c) {
    const A value = static_cast<A>(x[c]);
    return value * value;
  });
  const A rstd = A(1) / std::sqrt(sum / static_cast<A>(C) + static_cast<A>(eps));
  vector_for(0, C,
             [=](int64_t c) { y[c] = static_cast<TY>(w[c] * (static_cast<A>(x[c]) * rstd)); });
  return rstd;
}

}  // namespace

template <class TX, class TY>
void rms_norm_forward(TY* y, acc_t<TY>* rstd, const TX* x, const acc_t<TY>* w, int64_t rows,
                      int64_t C, double eps, Stream) {
  parallel_for(rows, row_grain(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rstd[r] = normalize_row(y + r * C, x + r * C, w, C, eps);
    }
  });
}

template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream) {
  using A = acc_t<TY>;
  parallel_for(rows, row_grain(C), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      TX* row = sum + r * C;
      const TX* left = a + r * C;
      const TY* right = b + r * C;
      vector_for(0, C, [=](int64_t c) {
        row[c] = static_cast<TX>(static_cast<A>(left[c]) + static_cast<A>(right[c]));
      });
      rstd[r] = normalize_row(y + r * C, row, w, C, eps);
    }
  });
}

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return partial_sum_bytes(rows, C);
}

template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream) {
  using A = acc_t<TY>;
  A* partial = dw == nullptr ? nullptr : static_cast<A*>(scratch);
  for_row_chunks(rows, C, partial, [=](int64_t begin, int64_t end, A* sums) {
    for (int64_t r = begin; r < end; ++r) {
      const TX* xr = x + r * C;
      const TY* grad = dy + r * C;
      const A scale = rstd[r];
      const A dot = lane_sum<A>(C, [=](int64_t c) {
        return w[c] * static_cast<A>(grad[c]) * (static_cast<A>(xr[c]) * scale);
      });
      const A mean = dot / static_cast<A>(C);
      if (sums != nullptr) {  // before dx, which may lie over dsum but never over x or dy
        vector_for(0, C, [=](int64_t c) {
          sums[c] += static_cast<A>(grad[c]) * (static_cast<A>(xr[c]) * scale);
        });
      }
      const auto through_norm = [=](int64_t c) {
        const A z = static_cast<A>(xr[c]) * scale;
        return scale * (w[c] * static_cast<A>(grad[c]) - z * mean);
      };
      TX* out = dx + r * C;
      if (dsum == nullptr) {
        vector_for(0, C, [=](int64_t c) { out[c] = static_cast<TX>(through_norm(c)); });
      } else {
        const TX* residual = dsum + r * C;
        vector_for(0, C, [=](int64_t c) {
          out[c] = static_cast<TX>(static_cast<A>(residual[c]) + through_norm(c));
        });
      }
    }
  });
  if (dw != nullptr) fold_chunks(dw, partial, rows, C, C, add_dw);
}

#define QUERN_INSTANTIATE(TX, TY)                                                                  \
  template void rms_norm_forward(TY*, acc_t<TY>*, const TX*, const acc_t<TY>*, int64_t, int64_t,   \
                                 double, Stream);                                                  \
  template void add_rms_norm_forward(TX*, TY*, acc_t<TY>*, const TX*, const TY*, const acc_t<TY>*, \
                                     int64_t, int64_t, double, Stream);                            \
  template void rms_norm_backward(TX*, acc_t<TY>*, const TY*, const TX*, const TX*,                \
                                  const acc_t<TY>*, const acc_t<TY>*, int64_t, int64_t, bool,      \
                                  void*, Stream);
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
QUERN_INSTANTIATE(double, double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
