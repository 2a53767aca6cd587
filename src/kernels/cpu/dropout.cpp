// Dropout: see kernels/dropout.h.
#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/common/dropout_math.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

void next_draw(DropoutDraw* out, DropoutDraw* state, Stream) {
  *out = *state;
  state->number += state->stride;
}

template <class T>
void dropout(T* y, const T* x, int64_t n, double p, uint32_t site, const DropoutDraw* draw,
             Stream) {
  using A = acc_t<T>;
  const uint64_t seed = draw->seed, base = draw->number * static_cast<uint64_t>(n);
  const uint32_t threshold = dropout_threshold(p);
  const A scale = static_cast<A>(dropout_scale(p));
  const int64_t skipped = static_cast<int64_t>(base % 8);  // in the first block before x[0]
  parallel_for((skipped + n + 7) / 8, kGrain / 8, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const PhiloxBlock words = dropout_words(seed, site, base / 8 + static_cast<uint64_t>(block));
      const int64_t first = block * 8 - skipped, last = std::min(first + 8, n);
      for (int64_t i = std::max<int64_t>(first, 0); i < last; ++i) {
        const bool kept = dropout_keeps(words, static_cast<int>(i - first), threshold);
        y[i] = static_cast<T>(kept ? static_cast<A>(x[i]) * scale : A(0));
      }
    }
  });
}

template decltype(dropout<float>) dropout<float>;
template decltype(dropout<bfloat16>) dropout<bfloat16>;
template decltype(dropout<double>) dropout<double>;

}  // namespace quern::kernels::cpu
