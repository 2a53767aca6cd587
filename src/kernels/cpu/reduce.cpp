// Sums, means and maxima over the middle extent of (outer, n, inner). The shape fixes the chunks of
// a sum along n: the cores share them, and their partial sums are added in order.
#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/strided.h"

namespace quern::kernels::cpu {
namespace {

// sums[i] = sum over j in [begin, end) of x[j, i] or of its square, x (n, inner).
template <bool kSquares, class A, class T>
void sum_rows(A* sums, const T* x, int64_t begin, int64_t end, int64_t inner) {
  const auto term = [](T value) {
    const A v = static_cast<A>(value);
    return kSquares ? v * v : v;
  };
  if (inner == 1) {
    const T* from = x + begin;
    sums[0] = lane_sum<A>(end - begin, [=](int64_t j) { return term(from[j]); });
    return;
  }
  std::fill_n(sums, inner, A(0));
  for (int64_t j = begin; j < end; ++j) {
    const T* row = x + j * inner;
    vector_for(0, inner, [=](int64_t i) { sums[i] += term(row[i]); });
  }
}

template <bool kSquares, class Y, class T>
void sum_in_parts(Y* y, const T* x, const ReduceShape& s, double scale) {
  using A = acc_t<T>;
  const int64_t chunk = std::clamp<int64_t>(row_grain(s.inner), 1, std::max<int64_t>(1, s.n));
  const int64_t chunks = std::max<int64_t>(1, (s.n + chunk - 1) / chunk);
  const auto partial = std::make_unique_for_overwrite<A[]>(s.outer * chunks * s.inner);
  A* sums = partial.get();

  parallel_rows(s.outer * chunks, chunk * s.inner, [=](int64_t piece) {
    const int64_t first = piece % chunks * chunk, last = std::min(first + chunk, s.n);
    sum_rows<kSquares>(sums + piece * s.inner, x + piece / chunks * s.n * s.inner, first, last,
                       s.inner);
  });

  const A factor = static_cast<A>(scale);
  parallel_rows(s.outer * s.inner, chunks, [=](int64_t out) {
    const A* from = sums + out / s.inner * chunks * s.inner + out % s.inner;
    A total = 0;
    for (int64_t c = 0; c < chunks; ++c) total += from[c * s.inner];
    y[out] = static_cast<Y>(total * factor);
  });
}

}  // namespace

int64_t sum_forward_scratch(const ReduceShape&, Stream) {
  return 0;
}

template <class Y, class T>
void sum_forward(Y* y, const T* x, const ReduceShape& s, double scale, void*, Stream) {
  sum_in_parts<false>(y, x, s, scale);
}

template <class T>
void sum_squares_forward(T* y, const T* x, const ReduceShape& s, double scale, void*, Stream) {
  sum_in_parts<true>(y, x, s, scale);
}

template <class T>
void sum_backward(T* dx, const T* dy, const ReduceShape& s, double scale, Stream) {
  using A = acc_t<T>;
  const A factor = static_cast<A>(scale);
  const int64_t shape[] = {s.outer, s.n, s.inner}, strides[] = {s.inner, 0, 1};
  const StridedWalk<1> walk(3, shape, {strides});
  walk.parallel_spans([&](int64_t position, const auto& at, int64_t count) {
    T* out = dx + position;
    const T* grad = dy + at[0];
    if (walk.col_stride(0) == 0) {
      std::fill_n(out, count, static_cast<T>(factor * static_cast<A>(grad[0])));
    } else {
      vector_for(0, count,
                 [=](int64_t i) { out[i] = static_cast<T>(factor * static_cast<A>(grad[i])); });
    }
  });
}

template <class T>
void max_forward(T* y, int64_t* index, const T* x, const ReduceShape& s, Stream) {
  using A = acc_t<T>;
  parallel_rows(s.outer, s.n * s.inner, [=](int64_t o) {
    T* best = y + o * s.inner;
    int64_t* where = index + o * s.inner;
    const T* slab = x + o * s.n * s.inner;
    std::copy_n(slab, s.inner, best);
    std::fill_n(where, s.inner, int64_t{0});
    for (int64_t j = 1; j < s.n; ++j) {
      for (int64_t i = 0; i < s.inner; ++i) {
        const A now = static_cast<A>(best[i]), next = static_cast<A>(slab[j * s.inner + i]);
        if (next > now || (std::isnan(next) && !std::isnan(now))) {  // larger, or the first NaN
          best[i] = slab[j * s.inner + i];
          where[i] = j;
        }
      }
    }
  });
}

template <class T>
void max_backward(T* dx, const T* dy, const int64_t* index, const ReduceShape& s, Stream) {
  parallel_rows(s.outer, s.n * s.inner, [=](int64_t o) {
    T* slab = dx + o * s.n * s.inner;
    std::fill_n(slab, s.n * s.inner, static_cast<T>(acc_t<T>(0)));
    for (int64_t i = 0; i < s.inner; ++i) {
      slab[index[o * s.inner + i] * s.inner + i] = dy[o * s.inner + i];
    }
  });
}

#define QUERN_INSTANTIATE(T)                                        \
  template decltype(sum_forward<T, T>) sum_forward<T, T>;           \
  template decltype(sum_squares_forward<T>) sum_squares_forward<T>; \
  template decltype(sum_backward<T>) sum_backward<T>;               \
  template decltype(max_forward<T>) max_forward<T>;                 \
  template decltype(max_backward<T>) max_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

template decltype(sum_forward<float, bfloat16>) sum_forward<float, bfloat16>;

}  // namespace quern::kernels::cpu
