// Dropout: see kernels/dropout.h.
#include "kernels/dropout.h"

#include "kernels/common/dropout_math.h"
#include "kernels/cpu/random_numbers.h"

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
  const auto words = [=](uint64_t block) { return dropout_words(seed, site, block); };
  // The low half of each word comes first, as in dropout_keeps.
  for_random_numbers<uint16_t>(n, base, words, [=](int64_t i, uint16_t half) {
    const bool kept = uint32_t{half} << 16 >= threshold << 16;
    y[i] = static_cast<T>(kept ? static_cast<A>(x[i]) * scale : A(0));
  });
}

template decltype(dropout<float>) dropout<float>;
template decltype(dropout<bfloat16>) dropout<bfloat16>;
template decltype(dropout<double>) dropout<double>;

}  // namespace quern::kernels::cpu
