// rank_sum on the GPU against the CPU: the same additions, so the same bits.
#include "kernels/rank_sum.h"

#include "gpu/reference.h"
#include "kernels/optimizer.h"

namespace quern::test {
namespace {

class RankSumGpu : public GpuTest {};

void check(int64_t n, int ranks, int64_t stride, int64_t shift, bool with_before) {
  SCOPED_TRACE(::testing::Message() << n << " elements, " << ranks << " ranks, stride " << stride
                                    << ", shift " << shift);
  const auto parts = random_values<float>(ranks * stride, 1), before = random_values<float>(n, 2);
  std::vector<float> expected(static_cast<size_t>(n));
  kernels::cpu::rank_sum(expected.data(), nullptr, with_before ? before.data() : nullptr,
                         parts.data(), ranks, stride, n, {});
  DeviceBuffer<float> device_parts(parts, shift), device_before(before, shift), out(n, shift);
  const int64_t chunks = kernels::norm_chunks(n);
  DeviceBuffer<float> squares(chunks), one_gpus(chunks);
  for (float* const wanted : {static_cast<float*>(nullptr), squares.get()}) {
    const auto found = run_twice(out, [&] {
      kernels::cuda::rank_sum(out.get(), wanted, with_before ? device_before.get() : nullptr,
                              device_parts.get(), ranks, stride, n, {});
    });
    expect_same_bits(found, expected);
  }
  kernels::cuda::sum_squares(one_gpus.get(), out.get(), n, {});
  if (with_before) {  // in place
    kernels::cuda::rank_sum(device_before.get(), squares.get(), device_before.get(),
                            device_parts.get(), ranks, stride, n, {});
    expect_same_bits(device_before.download(), expected);
  }
  expect_same_bits(squares.download(), one_gpus.download());
  squares.expect_guards_intact();
  device_parts.expect_guards_intact();
}

TEST_F(RankSumGpu, AnySize) {
  for (const int64_t n : {0, 1, 31, 33, 64, 1025, 1000003}) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const int64_t shift : {0, 1}) {
        check(n, ranks, (n + 63) / 64 * 64, shift, true);
        check(n, ranks, n, shift, false);
      }
    }
  }
}

}  // namespace
}  // namespace quern::test
