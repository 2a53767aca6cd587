#include "optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "nn/linear.h"
#include "nn/sequential.h"
#include "support/two_layers.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

void set_gradients(ParameterArena& arena, uint64_t seed) {
  Context context(kCpu, seed);
  const ContextScope scope(context);
  for (const Parameter* parameter : arena.parameters()) {
    if (parameter->group.frozen) continue;
    copy(parameter->grad(), normal(parameter->shape(), 0.0, 2.0));
    parameter->leaf()->fresh = false;
  }
}

// The definition, in double: Loshchilov and Hutter, 2019, algorithm 2, with the clip factor.
struct Reference {
  std::vector<double> p, m, v;
  int t = 0;
  void step(const std::vector<float>& g, double clip, double lr, double decay,
            const AdamWOptions& o) {
    ++t;
    for (size_t i = 0; i < p.size(); ++i) {
      const double gi = g[i] * clip;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gi;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gi * gi;
      const double update = m[i] / (1 - std::pow(o.beta1, t)) /
                            (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
      p[i] -= lr * (decay * p[i] + update);
    }
  }
};

std::vector<float> value_of(const ParameterArena& arena, const Parameter& parameter) {
  const int64_t begin = parameter.begin(), end = begin + parameter.numel();
  return arena.exact_values().slice(0, begin, end).to_vector<float>();
}

class AdamWTest : public testing::TestWithParam<KernelKind> {};

TEST_P(AdamWTest, FollowsTheDefinition) {
  TwoLayers model(Precision::bf16);
  ParameterArena& arena = *model.arena;
  AdamWOptions options;
  options.kernels = GetParam();
  AdamW optimizer(arena, options);
  std::vector<Reference> references;
  for (const Parameter* parameter : arena.parameters()) {
    const auto n = static_cast<size_t>(parameter->numel());
    Reference r{{}, std::vector<double>(n), std::vector<double>(n)};
    for (const float value : value_of(arena, *parameter)) r.p.push_back(value);
    references.push_back(std::move(r));
  }
  for (uint64_t step = 0; step < 5; ++step) {
    set_gradients(arena, step + 1);
    double squares = 0.0;
    for (const float g : arena.grads().to_vector<float>()) squares += static_cast<double>(g) * g;
    const double norm = std::sqrt(squares), clip = std::min(1.0, 1.0 / (norm + 1e-6));
    const double lr = 0.01 * static_cast<double>(step + 1);
    optimizer.step(lr);
    EXPECT_NEAR(optimizer.state().norm, norm, 1e-5 * norm);  // an FP32 sum of 60 squares
    for (size_t i = 0; i < references.size(); ++i) {
      const Parameter& parameter = *arena.parameters()[i];
      if (parameter.group.frozen) continue;
      const double decay = parameter.shape().ndim() >= 2 ? options.weight_decay : 0.0;
      references[i].step(parameter.grad().to_vector<float>(), clip, lr * parameter.group.lr_scale,
                         decay, options);
    }
  }
  for (size_t i = 0; i < references.size(); ++i) {
    const std::vector<float> values = value_of(arena, *arena.parameters()[i]);
    // Five FP32 updates of values around 1.
    for (size_t j = 0; j < values.size(); ++j)
      EXPECT_NEAR(values[j], references[i].p[j], 3e-6) << i << " " << j;
  }
  EXPECT_EQ(optimizer.state().step, 5);
}

TEST_P(AdamWTest, ANonfiniteGradientOrLossChangesNothing) {
  for (const bool in_loss : {false, true}) {
    TwoLayers model(Precision::fp32);
    ParameterArena& arena = *model.arena;
    AdamWOptions options;
    options.kernels = GetParam();
    AdamW optimizer(arena, options);
    set_gradients(arena, 1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (!in_loss) arena.parameters()[1]->grad().data<float>()[2] = nan;
    const std::vector<float> before = arena.exact_values().to_vector<float>();
    optimizer.step(0.1, full({}, in_loss ? nan : 1.0));
    EXPECT_EQ(arena.exact_values().to_vector<float>(), before);
    EXPECT_EQ(optimizer.state().finite, 0);
    EXPECT_EQ(optimizer.state().step, 0);
    EXPECT_EQ(optimizer.state().skipped, 1);
    set_gradients(arena, 2);
    optimizer.step(0.1, full({}, 1.0));
    EXPECT_EQ(optimizer.state().step, 1);
    EXPECT_NE(arena.exact_values().to_vector<float>(), before);
  }
}

TEST_P(AdamWTest, HaltsUntilTheHostHasLooked) {
  TwoLayers model(Precision::fp32);
  ParameterArena& arena = *model.arena;
  AdamWOptions options;
  options.kernels = GetParam();
  options.halt_on_nonfinite = true;
  AdamW optimizer(arena, options);
  set_gradients(arena, 1);
  const std::vector<float> before = arena.exact_values().to_vector<float>();
  optimizer.step(0.1, full({}, std::numeric_limits<double>::infinity()));
  optimizer.step(0.1, full({}, 1.0));
  EXPECT_EQ(arena.exact_values().to_vector<float>(), before);
  EXPECT_EQ(optimizer.state().skipped, 2);
  optimizer.set_progress(0, 2);  // as a resumed run does
  optimizer.step(0.1, full({}, 1.0));
  EXPECT_EQ(optimizer.state().step, 1);
  EXPECT_EQ(optimizer.state().skipped, 2);
  EXPECT_NE(arena.exact_values().to_vector<float>(), before);
}

TEST_P(AdamWTest, PaddingStaysZero) {
  TwoLayers model(Precision::bf16);
  ParameterArena& arena = *model.arena;
  AdamWOptions options;
  options.kernels = GetParam();
  AdamW optimizer(arena, options);
  for (uint64_t step = 0; step < 3; ++step) {
    set_gradients(arena, step + 1);
    optimizer.step(0.1);
  }
  const std::vector<bool> used = used_elements(arena);
  for (const Tensor& buffer : {arena.exact_values(), optimizer.moment1(), optimizer.moment2(),
                               arena.copies().to(DType::f32)}) {
    const std::vector<float> values = buffer.to_vector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (used[i]) continue;
      EXPECT_EQ(values[i], 0.0f) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AdamWTest, testing::Values(KernelKind::naive, KernelKind::fused),
                         [](const auto& info) {
                           return info.param == KernelKind::naive ? "naive" : "fused";
                         });

struct AllocationCounter : AllocationObserver {
  int64_t count = 0, bytes = 0;
  void on_allocate(const Allocation& a) override {
    ++count;
    bytes += a.bytes;
  }
  void on_release(const Allocation&) override {}
};

struct AllocationTags : AllocationObserver {
  std::map<const void*, std::pair<std::string, MemoryCategory>> of;
  void on_allocate(const Allocation& a) override { of[a.data] = {a.name, a.category}; }
  void on_release(const Allocation& a) override { of.erase(a.data); }
};

TEST(AdamW, NamesItsStateInReportsOfMemory) {
  TwoLayers model(Precision::fp32);
  AllocationTags tags;
  const auto& allocator = Context::current().allocator(kCpu);
  allocator->set_observer(&tags);
  const AdamW optimizer(*model.arena, {});
  allocator->set_observer(nullptr);
  EXPECT_EQ(tags.of[optimizer.moment1().raw_data()],
            std::pair(std::string("adam first moment"), MemoryCategory::optimizer));
  EXPECT_EQ(tags.of[optimizer.moment2().raw_data()],
            std::pair(std::string("adam second moment"), MemoryCategory::optimizer));
}

// The ops run over the whole arena: as many for many parameters as for few.
TEST(NaiveAdamW, OpsDoNotGrowWithTheNumberOfParameters) {
  const auto allocations = [](int layers) {
    Sequential net;
    for (int i = 0; i < layers; ++i) net.append<Linear>(5, 5, Init::normal(1.0), true);
    ParameterArena arena(net, {Precision::fp32, true, 7});
    AdamWOptions options;
    options.kernels = KernelKind::naive;
    AdamW optimizer(arena, options);
    set_gradients(arena, 1);
    AllocationCounter counter;
    const auto& allocator = Context::current().allocator(kCpu);
    allocator->set_observer(&counter);
    optimizer.step(0.1);
    allocator->set_observer(nullptr);
    // The root, the denominator and the change, each of the arena's size; one sum.
    EXPECT_LT(counter.bytes, 3 * arena.trainable() * 4 + 4096) << layers;
    return counter.count;
  };
  EXPECT_EQ(allocations(2), allocations(9));
}

// A model without its gradients has no step; without clipping, gradients of any norm pass whole.
TEST(Optimizer, NeedsGradientsAndMayLeaveThemUnclipped) {
  Sequential net;
  net.append<Linear>(3, 5, Init::normal(1.0));
  ParameterArena fixed(net, {.training = false});
  EXPECT_THROW(AdamW(fixed, {}), Error);
  TwoLayers fused(Precision::fp32), naive(Precision::fp32);
  for (const auto& [model, kernels] :
       {std::pair{&fused, KernelKind::fused}, {&naive, KernelKind::naive}}) {
    AdamW optimizer(*model->arena, {.eps = 1.0, .clip = 0.0, .kernels = kernels});
    set_gradients(*model->arena, 1);
    optimizer.step(0.1);
    EXPECT_EQ(optimizer.state().clip, 1.0f);
  }
  const std::vector<float> a = fused.arena->exact_values().to_vector<float>();
  const std::vector<float> b = naive.arena->exact_values().to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6);  // roundings of 6e-8
}

// Both take the same random numbers. Where their FP32 moments differ in the last bits, a rounding
// may still differ.
TEST(AdamWKinds, RoundBf16MomentsAlike) {
  struct Run {
    explicit Run(KernelKind kernels) : net(128, 64, Init::normal(1.0)), arena(net, {.seed = 7}) {
      optimizer = std::make_unique<AdamW>(
          arena, AdamWOptions{.kernels = kernels, .moments = MomentType::bf16, .seed = 3});
    }
    Linear net;
    ParameterArena arena;
    std::unique_ptr<AdamW> optimizer;
  };
  Run fused(KernelKind::fused), naive(KernelKind::naive);
  for (uint64_t step = 1; step <= 3; ++step) {
    for (Run* run : {&fused, &naive}) {
      set_gradients(run->arena, step);
      run->optimizer->step(0.01);
    }
  }
  const auto share_of_equals = [](const Tensor& x, const Tensor& y) {
    const auto a = x.to_vector<bfloat16>(), b = y.to_vector<bfloat16>();
    double equal = 0.0;
    for (size_t i = 0; i < a.size(); ++i) equal += a[i].bits == b[i].bits ? 1.0 : 0.0;
    return equal / static_cast<double>(a.size());
  };
  EXPECT_GT(share_of_equals(fused.optimizer->moment1(), naive.optimizer->moment1()), 0.99);
  EXPECT_GT(share_of_equals(fused.optimizer->moment2(), naive.optimizer->moment2()), 0.99);
}

// Three ranks, one of them without a share, update what one does.
class AdamWShares : public testing::TestWithParam<std::tuple<KernelKind, MomentType>> {};
INSTANTIATE_TEST_SUITE_P(Modes, AdamWShares,
                         testing::Combine(testing::Values(KernelKind::fused, KernelKind::naive),
                                          testing::Values(MomentType::fp32, MomentType::bf16)));

TEST_P(AdamWShares, GiveTheBitsOfTheWhole) {
  struct Rank {
    Sequential net;
    std::unique_ptr<ParameterArena> arena;
    std::unique_ptr<AdamW> optimizer;
  };
  AdamWOptions options;
  std::tie(options.kernels, options.moments) = GetParam();
  const auto make = [&](Rank& rank, const ArenaLayoutOf& layout) {
    rank.net.append<Linear>(100, 30, Init::normal(1.0), true).weight.group.lr_scale = 0.5;
    rank.net.append<Linear>(30, 50, Init::normal(1.0), true);
    const ParameterArena::Options of_arena{
        .precision = Precision::bf16, .seed = 7, .layout = layout};
    rank.arena = std::make_unique<ParameterArena>(rank.net, of_arena);
    rank.optimizer = std::make_unique<AdamW>(*rank.arena, options);
  };
  Rank whole;
  make(whole, {});
  constexpr int64_t kCut = 3 * kernels::kNormChunk;
  const int64_t n = whole.arena->trainable();
  std::array<Rank, 3> ranks;
  const std::array<std::pair<int64_t, int64_t>, 3> shares{{{0, kCut}, {kCut, kCut}, {kCut, n}}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    make(ranks[i], [&](const ParameterTable& table) {
      const Placement all = Placement::whole(table.size());
      ArenaLayout layout{{}, all, all, all, true};
      layout.values.append(shares[i].first, shares[i].second);
      return layout;
    });
  }
  const auto joined = [&](const auto& part_of) {
    std::vector<float> all;
    for (const Rank& rank : ranks) {
      const auto part = part_of(rank).to(DType::f32).template to_vector<float>();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  for (uint64_t step = 1; step <= 3; ++step) {
    set_gradients(*whole.arena, step);
    whole.optimizer->step(0.01);
    for (Rank& rank : ranks) {
      set_gradients(*rank.arena, step);
      kernels::cpu::sum_squares(rank.optimizer->take_over_norm().raw_data(),
                                rank.arena->grads().data<float>(), n, {});
      rank.optimizer->step(0.01);
      EXPECT_EQ(rank.optimizer->state().norm, whole.optimizer->state().norm);
    }
    EXPECT_EQ(joined([](const Rank& rank) { return rank.arena->values(); }),
              whole.arena->exact_values().to_vector<float>());
  }
  EXPECT_EQ(joined([](const Rank& rank) { return rank.optimizer->moment2(); }),
            whole.optimizer->moment2().to(DType::f32).to_vector<float>());
}

// A second moment that grows by less than half a BF16 step at each update, which rounding to the
// nearest would never let grow.
TEST_P(AdamWTest, Bf16MomentsGrowAsTheyShould) {
  Linear net(64, 64, Init::normal(1.0));
  ParameterArena arena(net, {.training = true});
  AdamWOptions options{.beta1 = 0.999, .beta2 = 0.999, .weight_decay = 0.0, .clip = 0.0};
  options.kernels = GetParam();
  options.moments = MomentType::bf16;
  options.seed = 5;
  AdamW optimizer(arena, options);
  ASSERT_EQ(optimizer.moment1().dtype(), DType::bf16);
  ASSERT_EQ(optimizer.moment2().dtype(), DType::bf16);
  const int steps = 1000;
  for (int step = 0; step < steps; ++step) {
    fill(net.weight.grad(), 0.75);
    net.weight.leaf()->fresh = false;
    optimizer.step(1e-6);
  }
  // Each update errs by at most a BF16 step, 2^-7 of the moment, and forgets with its decay: the
  // mean of 4096 elements is much closer to the exact one than one element is.
  const double grown = 1.0 - std::pow(0.999, steps);
  const auto mean = [](const Tensor& x) {
    double sum = 0.0;
    for (const float value : x.to(DType::f32).to_vector<float>()) sum += value;
    return sum / static_cast<double>(x.numel());
  };
  EXPECT_NEAR(mean(optimizer.moment1()), 0.75 * grown, 0.01 * 0.75 * grown);
  EXPECT_NEAR(mean(optimizer.moment2()), 0.5625 * grown, 0.01 * 0.5625 * grown);
}

// The last parameter may be left out, whether or not frozen ones follow it.
TEST(AdamWMoments, LeavesOutTheLast) {
  for (const bool frozen : {false, true}) {
    Sequential net;
    net.append<Linear>(3, 5, Init::normal(1.0));
    net.append<Linear>(5, 7, Init::normal(1.0)).weight.group.frozen = frozen;
    ParameterArena arena(net, {});
    const std::string last = frozen ? "0.weight" : "1.weight";
    const AdamWMoments moments(arena, {},
                               [&](const ParameterEntry& entry) { return entry.name != last; });
    const auto slices = moments.buffers()[0].slices;
    ASSERT_EQ(slices.size(), frozen ? 0u : 1u);
    EXPECT_LT(moments.first().numel(), arena.trainable());
  }
}

}  // namespace
}  // namespace quern
