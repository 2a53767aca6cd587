// The end of a step on the GPU: the norm and AdamW against their formulas in double.
#include "kernels/optimizer.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::AdamWHyper;
using kernels::AdamWRange;
using kernels::StepState;
using kernels::cuda::Stream;

class OptimizerGpu : public GpuTest {};

StepState run_norm(const std::vector<float>& grad, float grad_scale, float max_norm,
                   const float* loss, StepState start = {}) {
  const auto n = static_cast<int64_t>(grad.size());
  DeviceBuffer<StepState> state(std::vector<StepState>{start});
  DeviceBuffer<float> device_grad(grad);
  DeviceBuffer<float> device_loss(std::vector<float>{loss != nullptr ? *loss : 0.0f});
  const int64_t chunks = kernels::norm_chunks(n);
  EXPECT_EQ(kernels::cuda::norm_partial_bytes(Stream{}), sizeof(float));
  DeviceBuffer<float> partial(chunks);
  const auto run = [&] {
    kernels::cuda::sum_squares(partial.get(), device_grad.get(), n, Stream{});
    kernels::cuda::finish_norm(state.get(), partial.get(), chunks, grad_scale, max_norm,
                               loss != nullptr ? device_loss.get() : nullptr, Stream{});
    return state.download()[0];
  };
  const StepState first = run();
  const StepState second = run();
  EXPECT_EQ(std::memcmp(&first.norm, &second.norm, sizeof(float)), 0);
  partial.expect_guards_intact();
  state.expect_guards_intact();
  return first;
}

TEST_F(OptimizerGpu, GlobalNorm) {
  for (const int64_t n : {0, 1, 31, 33, 1025, 4097, 2097152, 2097153, 5000003}) {
    const auto grad = random_values<float>(n, 1);
    double squares = 0.0;
    for (const float g : grad) squares += double{g} * double{g};
    const double norm = 0.5 * std::sqrt(squares);
    // Positive terms summed by chunks, then by threads: some dozens of roundings of 6e-8, halved by
    // the root.
    const StepState free = run_norm(grad, 0.5f, 0.0f, nullptr);
    EXPECT_NEAR(free.norm, norm, 2e-6 * norm);
    EXPECT_EQ(free.clip, 0.5f);
    EXPECT_EQ(free.finite, 1);
    const StepState clipped = run_norm(grad, 0.5f, 1.0f, nullptr);
    const double clip = 0.5 * std::min(1.0, 1.0 / (norm + 1e-6));
    EXPECT_NEAR(clipped.clip, clip, 3e-6 * clip);
  }
}

// Parts that begin at chunks give the partial sums of the whole: ranks share the norm.
TEST_F(OptimizerGpu, PartialSumsOfPartsAreThoseOfTheWhole) {
  const int64_t n = 1000003, cut = 300 * kernels::kNormChunk, chunks = kernels::norm_chunks(n);
  DeviceBuffer<float> grad(random_values<float>(n, 1)), whole(chunks), parts(chunks);
  kernels::cuda::sum_squares(whole.get(), grad.get(), n, Stream{});
  kernels::cuda::sum_squares(parts.get() + 300, grad.get() + cut, n - cut, Stream{});
  kernels::cuda::sum_squares(parts.get(), grad.get(), cut, Stream{});
  EXPECT_EQ(parts.download(), whole.download());
}

TEST_F(OptimizerGpu, NonFiniteNormOrLossClearsTheFlag) {
  auto grad = random_values<float>(3000, 1);
  const float good = 1.0f, bad = NAN;
  EXPECT_EQ(run_norm(grad, 1.0f, 1.0f, &good).finite, 1);
  EXPECT_EQ(run_norm(grad, 1.0f, 1.0f, &bad).finite, 0);
  StepState halted;
  halted.halt = 1;
  halted.skipped = 1;
  EXPECT_EQ(run_norm(grad, 1.0f, 1.0f, &good, halted).finite, 0);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    grad[2999] = value;
    EXPECT_EQ(run_norm(grad, 1.0f, 1.0f, &good).finite, 0);
  }
}

// One AdamW step of one element, as the header states it.
struct Moments {
  double p, m, v;
};
Moments adamw_step(Moments x, double grad, const StepState& state, const AdamWRange& range,
                   const AdamWHyper& hyper) {
  const double t = static_cast<double>(state.step + 1);
  const double b1 = hyper.beta1, b2 = hyper.beta2, g = grad * state.clip;
  x.m = b1 * x.m + (1.0 - b1) * g;
  x.v = b2 * x.v + (1.0 - b2) * g * g;
  const double first = x.m / (1.0 - std::pow(b1, t)), second = x.v / (1.0 - std::pow(b2, t));
  x.p -= state.lr * range.lr_scale * (range.decay * x.p + first / (std::sqrt(second) + hyper.eps));
  return x;
}

// Ranges with gaps, odd ends, many in one chunk, and one over several chunks.
const std::vector<AdamWRange> kRanges = {{0, 5, 1.0f, 0.1f},        {8, 1, 2.0f, 0.0f},
                                         {64, 33, 1.0f, 0.0f},      {97, 3, 0.5f, 0.2f},
                                         {128, 4095, 1.0f, 0.1f},   {4224, 31, 1.0f, 0.0f},
                                         {8192, 20001, 1.5f, 0.1f}, {28256, 64, 1.0f, 0.1f}};
constexpr int64_t kArena = 28400;  // the last 80 elements are padding

// More ranges than a block has threads.
std::vector<AdamWRange> many_ranges() {
  std::vector<AdamWRange> ranges;
  for (int i = 0; i < 690; ++i) {
    ranges.push_back({i * 41, 40, 1.0f + static_cast<float>(i) / 690.0f, 0.1f});
  }
  return ranges;
}

struct Arena {
  std::vector<float> param = random_values<float>(kArena, 1);
  std::vector<float> m = random_values<float>(kArena, 2);
  std::vector<float> v = random_values<float>(kArena, 3, 0.0, 2.0);
  std::vector<float> grad = random_values<float>(kArena, 4);
};

void check_adamw(const std::vector<AdamWRange>& all, int64_t step, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << "step " << step << ", shift " << shift);
  const Arena arena;
  const AdamWHyper hyper;
  StepState state;
  state.lr = 3e-3f;
  state.clip = 0.7f;
  state.step = step;
  DeviceBuffer<float> param(arena.param, shift), m(arena.m, shift), v(arena.v, shift);
  DeviceBuffer<float> grad(arena.grad, shift);
  DeviceBuffer<AdamWRange> ranges(all);
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  const auto run = [&] {
    param.upload(arena.param);
    m.upload(arena.m);
    v.upload(arena.v);
    kernels::cuda::adamw({param.get()}, m.get(), v.get(), grad.get(), ranges.get(),
                         static_cast<int64_t>(all.size()), kArena, hyper, device_state.get(),
                         Stream{});
  };
  run();
  const auto new_param = param.download(), new_m = m.download(), new_v = v.download();
  run();
  expect_same_bits(param.download(), new_param);
  param.expect_guards_intact();

  std::vector<double> wide_param = widen(arena.param), wide_m = widen(arena.m),
                      wide_v = widen(arena.v);
  for (const AdamWRange& range : all) {
    for (int64_t k = range.begin; k < range.begin + range.count; ++k) {
      const auto i = static_cast<size_t>(k);
      const auto [p, new_first, new_second] =
          adamw_step({wide_param[i], wide_m[i], wide_v[i]}, arena.grad[i], state, range, hyper);
      wide_param[i] = p;
      wide_m[i] = new_first;
      wide_v[i] = new_second;
    }
  }
  // A handful of float operations; the two terms of m may cancel. A parameter moves by lr times a
  // ratio of moments, at most 2 / sqrt(1e-4), off by 1e-6 of that, and is rounded to 1.2e-7.
  expect_near(new_m, wide_m, 5e-7, 5e-7);
  expect_near(new_v, wide_v, 5e-7, 0.0);
  expect_near(new_param, wide_param, 2e-7, 2e-6);
}

// Moments with other offsets than their parameters: the same result as with equal offsets.
TEST_F(OptimizerGpu, AdamWOfShiftedMoments) {
  const Arena arena;
  for (const int64_t shift : {-4, -3, 8}) {
    const auto size = static_cast<int64_t>(kArena);
    const AdamWRange in_line{100, size - 200, 1.0f, 0.1f};
    AdamWRange shifted = in_line;
    shifted.shift = shift;
    StepState state;
    state.lr = 3e-3f;
    DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
    DeviceBuffer<float> grad(arena.grad);
    const auto run = [&](const AdamWRange& range) {
      std::vector<float> moved_m(arena.m.size()), moved_v(arena.v.size());
      for (int64_t i = 100; i < size - 100; ++i) {
        moved_m[static_cast<size_t>(i + range.shift)] = arena.m[static_cast<size_t>(i)];
        moved_v[static_cast<size_t>(i + range.shift)] = arena.v[static_cast<size_t>(i)];
      }
      DeviceBuffer<float> param(arena.param), m(moved_m), v(moved_v);
      DeviceBuffer<AdamWRange> ranges(std::vector<AdamWRange>{range});
      kernels::cuda::adamw({param.get()}, m.get(), v.get(), grad.get(), ranges.get(), 1, size, {},
                           device_state.get(), Stream{});
      std::vector<float> result = param.download();
      const std::vector<float> first = m.download(), second = v.download();
      for (int64_t i = 100; i < size - 100; ++i) {
        result.push_back(first[static_cast<size_t>(i + range.shift)]);
        result.push_back(second[static_cast<size_t>(i + range.shift)]);
      }
      return result;
    };
    expect_same_bits(run(shifted), run(in_line));
  }
}

TEST_F(OptimizerGpu, AdamW) {
  for (const int64_t step : {0, 1, 99, 100000}) {
    for (const int64_t shift : {0, 1}) {
      check_adamw(kRanges, step, shift);
      check_adamw(many_ranges(), step, shift);
    }
  }
}

// The parameters are those of an update with FP32 moments, and the moments are its own, rounded as
// the CPU rounds them. Vectors of four, and element by element.
TEST_F(OptimizerGpu, Bf16MomentsAreTheFp32OnesRounded) {
  const Arena arena;
  const AdamWHyper hyper{.seed = 77};
  StepState state;
  state.lr = 3e-3f, state.clip = 0.7f, state.step = 99;
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  const std::vector<bfloat16> m0(arena.m.begin(), arena.m.end()),
      v0(arena.v.begin(), arena.v.end());
  for (const int64_t shift : {0, 1}) {
    for (const int64_t arena_shift : {0, 1, 4096}) {
      SCOPED_TRACE(::testing::Message() << "shift " << shift << ", whole " << arena_shift);
      std::vector<AdamWRange> all = kRanges;
      for (AdamWRange& range : all) range.arena_shift = arena_shift;
      all[6].grad_shift = 3;
      all.back().shift = 1, ++all.back().arena_shift;  // the moments' place decides in this test
      DeviceBuffer<AdamWRange> ranges(all);
      DeviceBuffer<float> grad(arena.grad, shift), param32(arena.param, shift),
          param(arena.param, shift);
      DeviceBuffer<float> m32(std::vector<float>(m0.begin(), m0.end()), shift),
          v32(std::vector<float>(v0.begin(), v0.end()), shift);
      DeviceBuffer<bfloat16> m(m0, shift), v(v0, shift);
      const auto run = [&](auto& p, auto& first, auto& second) {
        kernels::cuda::adamw({p.get()}, first.get(), second.get(), grad.get(), ranges.get(),
                             static_cast<int64_t>(all.size()), kArena, hyper, device_state.get(),
                             Stream{});
      };
      run(param32, m32, v32);
      run(param, m, v);
      expect_same_bits(param.download(), param32.download());
      m.expect_guards_intact();
      v.expect_guards_intact();
      const auto exact_m = m32.download(), exact_v = v32.download();
      std::vector<bfloat16> rounded_m(m0.size()), rounded_v(v0.size());
      kernels::cpu::round_moments(rounded_m.data(), rounded_v.data(), exact_m.data(),
                                  exact_v.data(), kArena, arena_shift, hyper.seed, state.step + 1,
                                  {});
      expect_same_bits(m.download(), rounded_m);  // what no range covers is exact
      expect_same_bits(v.download(), rounded_v);
      DeviceBuffer<bfloat16> device_m(rounded_m.size(), shift), device_v(rounded_v.size(), shift);
      kernels::cuda::round_moments(device_m.get(), device_v.get(), m32.get(), v32.get(), kArena,
                                   arena_shift, hyper.seed, state.step + 1, Stream{});
      expect_same_bits(device_m.download(), rounded_m);
      expect_same_bits(device_v.download(), rounded_v);
    }
  }
}

template <class Moment>
void check_split_weights(const std::vector<AdamWRange>& all, int finite, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << "shift " << shift << ", finite " << finite);
  const Arena arena;
  StepState state;
  state.lr = 3e-3f, state.clip = 0.7f, state.step = 99, state.finite = finite;
  const std::vector<Moment> m0(arena.m.begin(), arena.m.end()), v0(arena.v.begin(), arena.v.end());
  DeviceBuffer<AdamWRange> ranges(all);
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  DeviceBuffer<float> param(arena.param, shift), joined(arena.param.size(), shift),
      grad(arena.grad, shift);
  DeviceBuffer<Moment> m(m0, shift), v(v0, shift), split_m(m0, shift), split_v(v0, shift);
  DeviceBuffer<bfloat16> copies(arena.param.size(), shift);
  DeviceBuffer<uint16_t> low(arena.param.size(), shift);
  kernels::cuda::split_weights(copies.get(), low.get(), param.get(), kArena, Stream{});
  const auto update = [&](const kernels::WeightArrays& weights, auto& first, auto& second) {
    kernels::cuda::adamw(weights, first.get(), second.get(), grad.get(), ranges.get(),
                         static_cast<int64_t>(all.size()), kArena, {}, device_state.get(),
                         Stream{});
  };
  update({param.get()}, m, v);
  update({nullptr, copies.get(), low.get()}, split_m, split_v);
  kernels::cuda::join_weights(joined.get(), copies.get(), low.get(), kArena, Stream{});
  expect_same_bits(joined.download(), param.download());
  expect_same_bits(split_m.download(), m.download());
  expect_same_bits(split_v.download(), v.download());
  copies.expect_guards_intact();
  low.expect_guards_intact();
  if (finite == 0) expect_same_bits(joined.download(), arena.param);
}

// Weights in two parts take the bits of an update in FP32. Vectors of four, and element by element.
TEST_F(OptimizerGpu, SplitWeightsAreTheExactOnes) {
  std::vector<AdamWRange> shifted = kRanges;
  for (AdamWRange& range : shifted) range.grad_shift = 3, range.arena_shift = 4096;
  shifted.back().shift = 1;
  for (const int64_t shift : {0, 1}) {
    for (const std::vector<AdamWRange>& all : {kRanges, many_ranges(), shifted}) {
      check_split_weights<float>(all, 1, shift);
      check_split_weights<bfloat16>(all, 1, shift);
    }
    check_split_weights<float>(kRanges, 0, shift);
  }
}

TEST_F(OptimizerGpu, SkippedStepChangesNothing) {
  const Arena arena;
  StepState state;
  state.lr = 1.0f;
  state.finite = 0;
  state.step = 4;
  DeviceBuffer<float> param(arena.param), m(arena.m), v(arena.v), grad(arena.grad);
  DeviceBuffer<AdamWRange> ranges(kRanges);
  DeviceBuffer<StepState> device_state(std::vector<StepState>{state});
  kernels::cuda::adamw({param.get()}, m.get(), v.get(), grad.get(), ranges.get(),
                       static_cast<int64_t>(kRanges.size()), kArena, {}, device_state.get(),
                       Stream{});
  kernels::cuda::finish_step(device_state.get(), Stream{});
  expect_same_bits(param.download(), arena.param);
  expect_same_bits(m.download(), arena.m);
  expect_same_bits(v.download(), arena.v);
  EXPECT_EQ(device_state.download()[0].step, 4);
  EXPECT_EQ(device_state.download()[0].skipped, 1);

  state.finite = 1;
  device_state.upload({state});
  kernels::cuda::finish_step(device_state.get(), Stream{});
  EXPECT_EQ(device_state.download()[0].step, 5);
  EXPECT_EQ(device_state.download()[0].skipped, 0);
}

TEST_F(OptimizerGpu, CountNonfinite) {
  auto data = random_values<float>(kArena, 1);
  data[6] = NAN;  // in a gap
  data[4] = INFINITY;
  for (const size_t i : {8192, 9000, 28192}) data[i] = NAN;
  DeviceBuffer<float> device_data(data);
  DeviceBuffer<AdamWRange> ranges(kRanges);
  DeviceBuffer<int64_t> counts(static_cast<int64_t>(kRanges.size()));
  const auto actual = run_twice(counts, [&] {
    kernels::cuda::count_nonfinite(counts.get(), device_data.get(), ranges.get(),
                                   static_cast<int64_t>(kRanges.size()), Stream{});
  });
  EXPECT_EQ(actual, (std::vector<int64_t>{1, 0, 0, 0, 0, 0, 3, 0}));
}

}  // namespace
}  // namespace quern::test
