// Muon on a GPU: its passes against the CPU's, the batched iteration, and the ten steps of
// torch.optim.Muon.
#include "kernels/muon.h"

#include "gpu/reference.h"
#include "optim/muon_cases.h"
#include "tensor/cuda_runtime.h"

namespace quern::test {
namespace {

using kernels::kMuonParts;
using kernels::MuonCopy;
using kernels::MuonMatrices;
using kernels::MuonMatrix;
using kernels::StepState;
using kernels::cuda::Stream;

class MuonGpu : public GpuTest {};

constexpr int64_t kArena = 12000, kStride = 5120;

struct State {
  std::vector<float> param = random_values<float>(kArena, 1);
  std::vector<float> grad = random_values<float>(kArena, 2);
  std::vector<float> momentum = random_values<float>(2 * kStride, 3);
  std::vector<bfloat16> x = random_values<bfloat16>(2 * kStride, 4);
  std::vector<float> squares = random_values<float>(2 * kMuonParts, 6, 0.0, 1.0);
};

// The passes on the device: momentum, the squares of its result, and the update and normalization
// of the x that was given.
State run_passes(const State& s, const std::vector<MuonMatrix>& matrices, const StepState& state,
                 int64_t shift, bool nesterov = true) {
  DeviceBuffer<float> param(s.param, shift), grad(s.grad, shift), momentum(s.momentum, shift);
  DeviceBuffer<bfloat16> x(s.x, shift), y(s.x, shift);
  DeviceBuffer<float> squares(s.squares), given(s.squares);
  DeviceBuffer<MuonMatrix> table(matrices);
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  const MuonMatrices group{table.get(), 2, matrices[0].numel};
  kernels::cuda::muon_momentum(x.get(), momentum.get(), grad.get(), group, 0.9f, nesterov,
                               device_state.get(), Stream{});
  kernels::cuda::muon_squares(squares.get(), x.get(), group, Stream{});
  kernels::cuda::muon_update({param.get()}, y.get(), group, device_state.get(), Stream{});
  kernels::cuda::muon_normalize(y.get(), given.get(), group, 1e-7f, Stream{});
  for (DeviceBuffer<bfloat16>* buffer : {&x, &y}) buffer->expect_guards_intact();
  for (DeviceBuffer<float>* buffer : {&param, &momentum, &squares}) buffer->expect_guards_intact();
  State after{param.download(), grad.download(), momentum.download(), x.download(),
              squares.download()};
  const std::vector<bfloat16> normalized = y.download();
  after.x.insert(after.x.end(), normalized.begin(), normalized.end());
  return after;
}

State run_on_cpu(State s, const std::vector<MuonMatrix>& matrices, const StepState& state) {
  const MuonMatrices group{matrices.data(), 2, matrices[0].numel};
  std::vector<bfloat16> y = s.x;
  const std::vector<float> given = s.squares;
  kernels::cpu::muon_momentum(s.x.data(), s.momentum.data(), s.grad.data(), group, 0.9f, true,
                              &state, {});
  kernels::cpu::muon_squares(s.squares.data(), s.x.data(), group, {});
  kernels::cpu::muon_update({s.param.data()}, y.data(), group, &state, {});
  kernels::cpu::muon_normalize(y.data(), given.data(), group, 1e-7f, {});
  s.x.insert(s.x.end(), y.begin(), y.end());
  return s;
}

// The second matrix lies at odd places, or at multiples of four elements.
std::vector<MuonMatrix> matrices_of(int64_t numel, int64_t odd) {
  return {{4, 8, 0, 0, numel, 1.0f, 0.5f, 0.1f},
          {6000 + odd, 5200 + odd, kStride - odd, kStride - odd, numel, 2.0f, 1.0f, 0.0f}};
}

TEST_F(MuonGpu, PassesAgreeWithTheCpu) {
  StepState state;
  state.lr = 0.01f, state.clip = 0.5f;
  const State start;
  for (const int64_t numel : {1, 31, 33, 1024, 5111, 5119}) {
    for (const auto& [shift, odd] : {std::pair<int64_t, int64_t>{0, 0}, {0, 1}, {1, 0}}) {
      SCOPED_TRACE(::testing::Message()
                   << numel << " elements, shift " << shift << ", odd " << odd);
      const std::vector<MuonMatrix> matrices = matrices_of(numel, odd);
      const State found = run_passes(start, matrices, state, shift);
      const State expected = run_on_cpu(start, matrices, state);
      // A few FP32 roundings, fused on one side; BF16 may then round to the neighbour.
      expect_close(found.momentum, expected.momentum, 5e-7, 5e-7);
      expect_close(found.param, expected.param, 5e-7, 5e-7);
      expect_close(found.x, expected.x, 0x1p-7, 1e-6);
      // Sums over parts of other lengths: the totals agree.
      for (int64_t k = 0; k < 2; ++k) {
        double a = 0.0, b = 0.0;
        for (int64_t i = k * kMuonParts; i < (k + 1) * kMuonParts; ++i) {
          a += found.squares[static_cast<size_t>(i)], b += expected.squares[static_cast<size_t>(i)];
        }
        EXPECT_NEAR(a, b, 1e-3 * b);
      }
    }
  }
}

// Vectors of four and single elements have the same bits, as the parts of ranks need.
TEST_F(MuonGpu, VectorsHaveTheBitsOfSingleElements) {
  StepState state;
  state.lr = 0.01f, state.clip = 0.7f;
  const State start;
  const std::vector<MuonMatrix> matrices = matrices_of(5111, 0);
  for (const bool nesterov : {true, false}) {
    const State vectors = run_passes(start, matrices, state, 0, nesterov);
    const State singles = run_passes(start, matrices, state, 1, nesterov);
    expect_same_bits(singles.momentum, vectors.momentum);
    expect_same_bits(singles.param, vectors.param);
    expect_same_bits(singles.x, vectors.x);
  }
}

// Weights in two parts take the bits of an update in FP32.
TEST_F(MuonGpu, SplitWeightsAreTheExactOnes) {
  StepState state;
  state.lr = 0.01f;
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  const State s;
  for (const auto& [shift, odd] : {std::pair<int64_t, int64_t>{0, 0}, {0, 1}, {1, 0}}) {
    const std::vector<MuonMatrix> matrices = matrices_of(5111, odd);
    DeviceBuffer<MuonMatrix> table(matrices);
    const MuonMatrices group{table.get(), 2, matrices[0].numel};
    DeviceBuffer<bfloat16> x(s.x, shift), copies(s.param.size(), shift);
    DeviceBuffer<uint16_t> low(s.param.size(), shift);
    DeviceBuffer<float> param(s.param, shift), joined(s.param.size(), shift);
    kernels::cuda::split_weights(copies.get(), low.get(), param.get(), kArena, Stream{});
    kernels::cuda::muon_update({param.get()}, x.get(), group, device_state.get(), Stream{});
    kernels::cuda::muon_update({nullptr, copies.get(), low.get()}, x.get(), group,
                               device_state.get(), Stream{});
    kernels::cuda::join_weights(joined.get(), copies.get(), low.get(), kArena, Stream{});
    expect_same_bits(joined.download(), param.download());
    copies.expect_guards_intact();
    low.expect_guards_intact();
  }
}

TEST_F(MuonGpu, NothingChangesWhenTheStepIsNotFinite) {
  StepState state;
  state.finite = 0;
  const State start;
  const State found = run_passes(start, matrices_of(1025, 0), state, 0);
  expect_same_bits(found.momentum, start.momentum);
  expect_same_bits(found.param, start.param);
}

TEST_F(MuonGpu, CopiesParts) {
  const std::vector<MuonCopy> copies = {{0, 8, 5000}, {5003, 1, 999}, {6004, 16, 0}, {6008, 3, 1}};
  const auto from = random_values<bfloat16>(kArena, 7), before = random_values<bfloat16>(kArena, 8);
  std::vector<bfloat16> expected = before;
  kernels::cpu::muon_copy(expected.data(), from.data(), {copies.data(), 4, 5000}, {});
  for (const int64_t shift : {0, 1}) {
    DeviceBuffer<bfloat16> to(before, shift), source(from, shift);
    DeviceBuffer<MuonCopy> table(copies);
    kernels::cuda::muon_copy(to.get(), source.get(), {table.get(), 4, 5000}, Stream{});
    to.expect_guards_intact();
    expect_same_bits(to.download(), expected);
  }
}

// A part of a batch has the bits of the whole, also where another process multiplies it: ranks may
// share out its matrices.
TEST_F(MuonGpu, APartOfABatchHasTheSameBits) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{96, 32},
                                   {256, 256},
                                   {512, 1376},
                                   {768, 768},
                                   {2048, 768},
                                   {256, 1536},
                                   {8960, 1536}}) {
    const int64_t count = 12, stride = (rows * cols + 127) / 128 * 128;
    // Of the last `part` matrices.
    const auto orthogonal = [&, rows = rows, cols = cols](int64_t part) {
      Context gpu({DeviceType::cuda, 0}, 1);
      const ContextScope scope(gpu);
      const double deviation = 0.5 / std::sqrt(static_cast<double>(rows * cols));
      const Tensor all = normal({count * stride}, 0.0, deviation, DType::bf16);
      const Tensor x = all.slice(0, (count - part) * stride, count * stride).clone("part");
      const Tensor y = orthogonalize(x, {rows, cols, part, stride, count}, {}).to(DType::f32);
      std::vector<std::vector<float>> matrices;
      for (int64_t i = 0; i < part; ++i) {
        const int64_t begin = i * stride;
        matrices.push_back(y.slice(0, begin, begin + rows * cols).to_vector<float>());
      }
      return matrices;
    };
    const auto whole = orthogonal(count);
    for (const int64_t part : {1, 5, 6}) {
      const auto found = orthogonal(part);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), whole.end() - part))
          << rows << " x " << cols << ", " << part << " matrices";
    }
  }
}

// One batched call a product: equals the CPU's result for each matrix by itself.
TEST_F(MuonGpu, IterationsAgreeWithTheCpu) {
  Context gpu({DeviceType::cuda, 0});
  const ContextScope scope(gpu);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{33, 7},
                                   {64, 160},
                                   {256, 64},
                                   {128, 128},
                                   {512, 768},
                                   {700, 512}}) {
    const int64_t count = 3, numel = rows * cols, stride = (numel + 127) / 128 * 128;
    const double deviation = 0.5 / std::sqrt(static_cast<double>(numel));
    const Tensor x = normal({count * stride}, 0.0, deviation, DType::bf16);
    const Tensor host = x.to(kCpu);
    const Tensor found = orthogonalize(x, {rows, cols, count, stride}, {}).to(kCpu);
    for (int64_t i = 0; i < count; ++i) {
      const auto matrix = [&, rows = rows, cols = cols](const Tensor& of) {
        return of.slice(0, i * stride, i * stride + rows * cols).reshape({rows, cols}).clone("m");
      };
      const auto floats = [](const Tensor& t) { return t.to(DType::f32).to_vector<float>(); };
      const std::vector<float> exact =
          floats(naive_orthogonalize(matrix(host).to(DType::f64), {}).to(DType::f32));
      const double naive =
          testing_support::error_of(floats(naive_orthogonalize(matrix(host), {})), exact);
      EXPECT_LE(testing_support::error_of(floats(matrix(found)), exact), 2 * naive + 1e-3)
          << rows << " x " << cols << ", matrix " << i;
    }
  }
}

class MuonGoldenOnGpu : public testing::TestWithParam<testing_support::MuonParameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(MuonGoldenOnGpu, AgreesWithTorch) {
  testing_support::expect_muon_case(DeviceChoice::cuda, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Golden, MuonGoldenOnGpu, testing_support::all_muon_parameters(),
                         testing_support::muon_case_name);

}  // namespace
}  // namespace quern::test
