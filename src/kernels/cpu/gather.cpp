// y[o, j, i] = x[o, index[o, j, i], i], and its transpose, which adds up repeated indices.
#include "kernels/gather.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {
namespace {

void check_index(const int64_t* index, const GatherShape& s) {
  for (int64_t e = 0; e < s.outer * s.m * s.inner; ++e) {
    QUERN_CHECK(index[e] >= 0 && index[e] < s.n, "gather: index ", e, " is ", index[e],
                ", expected 0 to ", s.n - 1);
  }
}

}  // namespace

template <class T>
void gather_forward(T* y, const T* x, const int64_t* index, const GatherShape& s, Stream) {
  check_index(index, s);
  parallel_rows(s.outer * s.m, s.inner, [=](int64_t row) {
    const T* slab = x + row / s.m * s.n * s.inner;
    for (int64_t i = 0; i < s.inner; ++i) {
      const int64_t at = row * s.inner + i;
      y[at] = slab[index[at] * s.inner + i];
    }
  });
}

template <class T>
void gather_backward(T* dx, const T* dy, const int64_t* index, const GatherShape& s, Stream) {
  using A = acc_t<T>;
  check_index(index, s);
  const int64_t slab = s.n * s.inner, picks = s.m * s.inner;
  parallel_for(s.outer, row_grain(slab + picks), [=](int64_t begin, int64_t end) {
    const auto buffer = std::make_unique_for_overwrite<A[]>(slab);
    A* sums = buffer.get();  // one (n, inner) slab in the summing type
    for (int64_t o = begin; o < end; ++o) {
      std::fill_n(sums, slab, A(0));
      for (int64_t e = 0; e < picks; ++e) {
        const int64_t at = o * picks + e;
        sums[index[at] * s.inner + e % s.inner] += static_cast<A>(dy[at]);
      }
      T* out = dx + o * slab;
      vector_for(0, slab, [=](int64_t e) { out[e] = static_cast<T>(sums[e]); });
    }
  });
}

#define QUERN_INSTANTIATE(T)                              \
  template decltype(gather_forward<T>) gather_forward<T>; \
  template decltype(gather_backward<T>) gather_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
