// The sum of the ranks' parts, in their order.
#include "kernels/rank_sum.h"

#include "kernels/common/parallel.h"
#include "kernels/optimizer.h"

namespace quern::kernels::cpu {

void rank_sum(float* out, void* squares, const float* before, const float* parts, int ranks,
              int64_t stride, int64_t n, Stream stream) {
  parallel_elements(n, [=](int64_t i) {
    float sum = before != nullptr ? before[i] + parts[i] : parts[i];
    for (int p = 1; p < ranks; ++p) sum += parts[p * stride + i];
    out[i] = sum;
  });
  if (squares != nullptr) sum_squares(squares, out, n, stream);
}

}  // namespace quern::kernels::cpu
