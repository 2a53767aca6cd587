#include "kernels/rank_sum.h"

#include "kernels/optimizer.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

// Sums in the order of the ranks, in FP32: other orders round otherwise.
std::vector<float> summed(const std::vector<float>* before, const std::vector<float>& parts,
                          int ranks, int64_t stride, int64_t n) {
  std::vector<float> sums;
  for (int64_t i = 0; i < n; ++i) {
    float sum = before != nullptr ? (*before)[i] + parts[i] : parts[i];
    for (int p = 1; p < ranks; ++p) sum += parts[p * stride + i];
    sums.push_back(sum);
  }
  return sums;
}

TEST(RankSum, InTheOrderOfTheRanks) {
  for (const int64_t n : {0, 1, 31, 33, 1025, 40000}) {
    for (const int ranks : {1, 2, 3, 8}) {
      const int64_t stride = n + 7;
      const auto parts = random_vector<float>(ranks * stride, 1),
                 before = random_vector<float>(n, 2);
      Guarded<float> out(n), in_place(before), of_parts(parts);
      Guarded<double> squares(norm_chunks(n)), expected(norm_chunks(n));
      cpu::rank_sum(out.data(), nullptr, nullptr, parts.data(), ranks, stride, n, cpu::Stream{});
      EXPECT_TRUE(same_bits(out.values(), summed(nullptr, parts, ranks, stride, n)));
      cpu::rank_sum(in_place.data(), squares.data(), in_place.data(), parts.data(), ranks, stride,
                    n, cpu::Stream{});
      EXPECT_TRUE(same_bits(in_place.values(), summed(&before, parts, ranks, stride, n)));
      cpu::sum_squares(expected.data(), in_place.data(), n, cpu::Stream{});
      EXPECT_TRUE(same_bits(squares.values(), expected.values()));
      float* const last = of_parts.data() + (ranks - 1) * stride;
      cpu::rank_sum(last, nullptr, before.data(), of_parts.data(), ranks, stride, n, cpu::Stream{});
      const std::vector<float> found(last, last + n);
      EXPECT_TRUE(same_bits(found, summed(&before, parts, ranks, stride, n)));
      of_parts.values();
    }
  }
}

}  // namespace
}  // namespace quern::kernels
