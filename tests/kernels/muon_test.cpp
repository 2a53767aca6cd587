#include "kernels/muon.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

constexpr int64_t kStride = 1152;

// Two matrices of `numel` elements, in each buffer at places of their own.
std::vector<MuonMatrix> matrices_of(int64_t numel) {
  return {{4, 10, 0, kStride, numel, 1.0f, 0.5f, 0.1f},
          {1201, 1190, kStride + 7, 3, numel, 2.0f, 1.0f, 0.0f}};
}

MuonMatrices table_of(const std::vector<MuonMatrix>& matrices) {
  return {matrices.data(), std::ssize(matrices), matrices[0].numel};
}

StepState state_of(int finite = 1) {
  StepState state;
  state.lr = 0.01f, state.clip = 0.5f, state.finite = finite;
  return state;
}

TEST(MuonKernels, MomentumFollowsTheFormula) {
  const auto grad = random_vector<float>(2400, 1), momentum = random_vector<float>(2400, 2);
  for (const int64_t numel : {0, 1, 31, 33, 1025}) {
    const std::vector<MuonMatrix> matrices = matrices_of(numel);
    for (const bool nesterov : {false, true}) {
      const StepState state = state_of();
      Guarded<float> m(momentum), squares(2 * kMuonParts);
      const std::vector<bfloat16> nothing(2400, bfloat16(7.0f));
      Guarded<bfloat16> x(nothing);
      cpu::muon_momentum(x.data(), m.data(), grad.data(), table_of(matrices), 0.9f, nesterov,
                         &state, cpu::Stream{});
      cpu::muon_squares(squares.data(), x.data(), table_of(matrices), cpu::Stream{});
      std::vector<double> expected_m = doubles(momentum), expected_x = doubles(nothing);
      std::vector<double> norms(2), sums(2);
      const std::vector<bfloat16> found_x = x.values();
      for (int64_t k = 0; k < 2; ++k) {
        for (int64_t i = 0; i < numel; ++i) {
          const int64_t at = matrices[k].momentum + i, out = matrices[k].x + i;
          const double g = 0.5 * grad[matrices[k].grad + i];
          expected_m[at] = 0.9 * momentum[at] + 0.1 * g;
          expected_x[out] = nesterov ? 0.1 * g + 0.9 * expected_m[at] : expected_m[at];
          norms[k] += std::pow(to_double(found_x[out]), 2);
        }
        for (int64_t part = 0; part < kMuonParts; ++part) {
          sums[k] += squares.data()[k * kMuonParts + part];
        }
      }
      expect_near(m.values(), expected_m);
      expect_near(found_x, expected_x);
      expect_near(sums, norms, 1e-6);  // parts are rounded to FP32
    }
  }
}

TEST(MuonKernels, NormalizesEachMatrix) {
  const int64_t numel = 1025;
  std::vector<MuonMatrix> matrices = matrices_of(numel);
  matrices[0].x = 0, matrices[1].x = kStride;
  const auto input = random_vector<bfloat16>(2 * kStride, 3);
  Guarded<bfloat16> x(input);
  std::vector<float> squares(2 * kMuonParts, 0.0f);
  for (int64_t i = 0; i < numel; ++i) {
    squares[static_cast<size_t>(i % kMuonParts)] +=
        static_cast<float>(std::pow(to_double(input[static_cast<size_t>(i)]), 2));
  }
  cpu::muon_normalize(x.data(), squares.data(), table_of(matrices), 0.25f, cpu::Stream{});
  const std::vector<bfloat16> found = x.values();
  double norm = 0.0;
  for (int64_t i = 0; i < numel; ++i) norm += std::pow(to_double(found[static_cast<size_t>(i)]), 2);
  EXPECT_NEAR(norm, 1.0, 0.01);  // two roundings to BF16, squared
  for (int64_t i = numel; i < kStride; ++i) EXPECT_EQ(found[i].bits, input[i].bits);
  for (int64_t i = 0; i < numel; ++i) {  // no squares: divided by eps
    EXPECT_EQ(to_double(found[kStride + i]), 4.0 * to_double(input[kStride + i]));
  }
}

TEST(MuonKernels, UpdateFollowsTheFormula) {
  const auto param = random_vector<float>(2400, 4);
  const auto x = random_vector<bfloat16>(2400, 5);
  for (const int64_t numel : {0, 1, 31, 33, 1025}) {
    const std::vector<MuonMatrix> matrices = matrices_of(numel);
    const StepState state = state_of();
    Guarded<float> p(param);
    cpu::muon_update({p.data()}, x.data(), table_of(matrices), &state, cpu::Stream{});
    std::vector<double> expected = doubles(param);
    for (int64_t k = 0; k < 2; ++k) {
      const MuonMatrix& one = matrices[k];
      const double lr = 0.01 * one.lr_scale;
      for (int64_t i = 0; i < numel; ++i) {
        double& value = expected[one.weight + i];
        value = value * (1 - lr * one.decay) - lr * one.adjust * to_double(x[one.x + i]);
      }
    }
    expect_near(p.values(), expected);
  }
}

// Weights in two parts take the bits of an update in FP32.
TEST(MuonKernels, SplitWeightsAreTheExactOnes) {
  const int64_t n = 2400;
  const auto param = random_vector<float>(n, 4);
  const auto x = random_vector<bfloat16>(n, 5);
  testing_support::at_each_cpu_level([&] {
    for (const int64_t numel : {0, 1, 33, 1025}) {
      const std::vector<MuonMatrix> matrices = matrices_of(numel);
      const StepState state = state_of();
      Guarded<float> p(param), joined(n);
      Guarded<bfloat16> copies(n);
      Guarded<uint16_t> low(n);
      cpu::split_weights(copies.data(), low.data(), param.data(), n, {});
      cpu::muon_update({p.data()}, x.data(), table_of(matrices), &state, {});
      cpu::muon_update({nullptr, copies.data(), low.data()}, x.data(), table_of(matrices), &state,
                       {});
      cpu::join_weights(joined.data(), copies.data(), low.data(), n, {});
      EXPECT_TRUE(same_bits(joined.values(), p.values())) << numel;
    }
  });
}

TEST(MuonKernels, DoNothingWhenTheStepIsNotFinite) {
  const StepState state = state_of(0);
  const auto values = random_vector<float>(2400, 6);
  const auto x = random_vector<bfloat16>(2400, 7);
  const std::vector<MuonMatrix> matrices = matrices_of(33);
  Guarded<float> momentum(values), param(values);
  Guarded<bfloat16> out(x);
  cpu::muon_momentum(out.data(), momentum.data(), values.data(), table_of(matrices), 0.9f, true,
                     &state, cpu::Stream{});
  cpu::muon_update({param.data()}, x.data(), table_of(matrices), &state, cpu::Stream{});
  EXPECT_EQ(momentum.values(), values);
  EXPECT_EQ(param.values(), values);
  EXPECT_TRUE(same_bits(out.values(), x));
}

TEST(MuonKernels, CopyParts) {
  const std::vector<MuonCopy> copies = {
      {3, 40, 1000}, {1100, 0, 1}, {1101, 1500, 0}, {1200, 2, 65}};
  const auto from = random_vector<bfloat16>(2000, 9), before = random_vector<bfloat16>(2000, 10);
  Guarded<bfloat16> to(before);
  cpu::muon_copy(to.data(), from.data(), {copies.data(), std::ssize(copies), 1000}, cpu::Stream{});
  std::vector<bfloat16> expected = before;
  for (const MuonCopy& copy : copies) {
    std::copy_n(from.begin() + copy.from, copy.numel, expected.begin() + copy.to);
  }
  EXPECT_TRUE(same_bits(to.values(), expected));
}

TEST(MuonKernels, GiveTheSameBitsOnAnyNumberOfThreads) {
  const int64_t numel = 300000, stride = 300032;
  const std::vector<MuonMatrix> matrices = {{0, 0, 0, 0, numel},
                                            {numel, numel, stride, stride, numel}};
  const MuonMatrices table = table_of(matrices);
  const auto grad = random_vector<float>(2 * numel, 8);
  expect_thread_count_does_not_matter([&] {
    const StepState state = state_of();
    std::vector<float> momentum(2 * stride), squares(2 * kMuonParts), param(2 * numel);
    std::vector<bfloat16> x(2 * stride);
    cpu::muon_momentum(x.data(), momentum.data(), grad.data(), table, 0.9f, true, &state,
                       cpu::Stream{});
    cpu::muon_squares(squares.data(), x.data(), table, cpu::Stream{});
    cpu::muon_normalize(x.data(), squares.data(), table, 1e-7f, cpu::Stream{});
    cpu::muon_update({param.data()}, x.data(), table, &state, cpu::Stream{});
    return param;
  });
}

}  // namespace
}  // namespace quern::kernels
