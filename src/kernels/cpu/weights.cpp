#include "kernels/weights.h"

#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

void split_weights(bfloat16* copies, uint16_t* low, const float* weights, int64_t n, Stream) {
  if (low == nullptr) {
    return parallel_elements(n, [=](int64_t i) { copies[i] = rounded_weight(weights[i]); });
  }
  parallel_elements(n, [=](int64_t i) {
    copies[i] = rounded_weight(weights[i]);
    low[i] = low_part(weights[i]);
  });
}

void join_weights(float* weights, const bfloat16* copies, const uint16_t* low, int64_t n, Stream) {
  parallel_elements(n, [=](int64_t i) { weights[i] = joined_weight(copies[i], low[i]); });
}

void join_runs(float* weights, const bfloat16* copies, const uint16_t* low, const WeightRun* runs,
               int64_t count, Stream) {
  parallel_for(count, 1, [=](int64_t r, int64_t) {
    const auto [begin, to, n] = runs[r];
    for (int64_t i = 0; i < n; ++i) {
      weights[to + i] = joined_weight(copies[begin + i], low[begin + i]);
    }
  });
}

}  // namespace quern::kernels::cpu
