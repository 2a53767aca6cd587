// Dropout: see kernels/dropout.h.
#include "kernels/dropout.h"

#include <algorithm>
#include <cstring>

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
    constexpr int64_t kBlocks = 64;  // at once, in vector instructions
    PhiloxBlock numbers[kBlocks];
    uint16_t halves[8 * kBlocks];  // an element's number each, the even ones' from low halves
    PhiloxBlock* const words = numbers;
    const uint16_t* const half = halves;
    for (int64_t block = begin; block < end; block += kBlocks) {
      const int64_t blocks = std::min(kBlocks, end - block);
      const uint64_t first = base / 8 + static_cast<uint64_t>(block);
      vector_for(0, blocks, [=](int64_t i) {
        words[i] = dropout_words(seed, site, first + static_cast<uint64_t>(i));
      });
      std::memcpy(halves, numbers, static_cast<size_t>(blocks) * sizeof(PhiloxBlock));
      const int64_t at = 8 * block - skipped;  // of the first half in x
      vector_for(std::max<int64_t>(at, 0), std::min(at + 8 * blocks, n), [=](int64_t i) {
        const bool kept = uint32_t{half[i - at]} << 16 >= threshold << 16;
        y[i] = static_cast<T>(kept ? static_cast<A>(x[i]) * scale : A(0));
      });
    }
  });
}

template decltype(dropout<float>) dropout<float>;
template decltype(dropout<bfloat16>) dropout<bfloat16>;
template decltype(dropout<double>) dropout<double>;

}  // namespace quern::kernels::cpu
