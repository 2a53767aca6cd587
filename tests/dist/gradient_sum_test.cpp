// The sum of gradients over micro-batches and ranks, against the same additions on the host.
#include "dist/gradient_sum.h"

#include <gtest/gtest.h>

#include <thread>

#include "autograd/ops/binary.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "dist/layout.h"
#include "dist/silent_group.h"
#include "kernels/optimizer.h"
#include "nn/module.h"
#include "support/files.h"
#include "support/thread_group.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

// Four blocks of vectors of odd lengths between two other vectors, and one vector that no loss
// uses.
class Vectors : public Module {
 public:
  class Block : public Module {
   public:
    void declare(ParameterList& list) override {
      list.add("a", a);
      list.add("b", b);
    }
    Parameter a{{33}, Init::constant(1.0)}, b{{1025}, Init::constant(1.0)};
  };

  void declare(ParameterList& list) override {
    list.add("first", first);
    for (size_t i = 0; i < blocks.size(); ++i) list.add_block(cat("block", i), blocks[i]);
    list.add("last", last);
    if (has_unused) list.add("unused", unused);
  }

  // d loss / d p = x for every parameter but the unused one.
  Variable loss(const std::vector<Tensor>& x) const {
    Variable total = zeros({});
    std::vector<const Parameter*> used{&first};
    for (const Block& block : blocks) {
      used.push_back(&block.a);
      used.push_back(&block.b);
    }
    used.push_back(&last);
    for (size_t i = 0; i < used.size(); ++i) {
      total = add(total, sum(mul(used[i]->master(), x[i])));
    }
    return total;
  }

  Parameter first{{5}, Init::constant(1.0)}, last{{64}, Init::constant(1.0)},
      unused{{3}, Init::constant(1.0)};
  std::array<Block, 4> blocks;
  bool has_unused = true;
};

constexpr std::array<int64_t, 10> kLengths{5, 33, 1025, 33, 1025, 33, 1025, 33, 1025, 64};

// The gradients of micro-batch m, the same on every rank: random, of very different sizes.
std::vector<std::vector<float>> gradients_of(int64_t m) {
  std::vector<std::vector<float>> all;
  Context context(kCpu, static_cast<uint64_t>(m + 1));
  const ContextScope scope(context);
  for (const int64_t n : kLengths) {
    all.push_back(normal({n}, 0.0, m % 2 == 0 ? 1.0 : 1000.0).to_vector<float>());
  }
  return all;
}

// One step of kMicroBatches on `ranks` ranks: all gradients of each rank and the summed scalars.
constexpr int64_t kMicroBatches = 12;
struct Result {
  std::vector<std::vector<float>> gradients;
  std::vector<float> scalars;
};

// As under ddp.
ParameterArena::Options whole_on(Communicator* group, BucketExchange exchange) {
  if (group == nullptr) return {};
  return {.layout = [=](const ParameterTable& table) {
    return layout_of(table, Parallel::ddp, exchange, group->size(), group->rank());
  }};
}

Result step_of(Communicator* group, BucketExchange exchange, bool deterministic,
               bool has_unused = true) {
  Context context(kCpu);
  context.options.deterministic = deterministic;
  const ContextScope scope(context);
  Vectors model;
  model.has_unused = has_unused;
  ParameterArena arena(model, whole_on(group, exchange));
  fill(arena.grads(), 7.0);  // rubbish
  const auto sum = make_gradient_sum(arena, group, exchange);
  const int64_t ranks = group == nullptr ? 1 : group->size();
  const int64_t rank = group == nullptr ? 0 : group->rank();
  const Tensor sums = full({2}, 9.0);
  sum->prepare(kMicroBatches / ranks);
  // Two steps: the second must not see what is left of the first.
  for (int i = 0; i < 2 * kMicroBatches / ranks; ++i) {
    const MicroBatch part{i % (kMicroBatches / ranks), kMicroBatches / ranks};
    const int64_t m = part.index * ranks + rank;
    sum->begin(part);
    std::vector<Tensor> x;
    for (const auto& values : gradients_of(m)) {
      x.push_back(from_vector(values, {static_cast<int64_t>(values.size())}));
    }
    backward(model.loss(x));
    sum->finish(sums, from_vector(std::vector<float>{0.1f * static_cast<float>(m), 1.0f}, {2}));
  }
  Result result;
  for (const Parameter* p : arena.parameters())
    result.gradients.push_back(p->grad().to_vector<float>());
  result.scalars = sums.to_vector<float>();
  return result;
}

std::vector<Result> step_on(int ranks, BucketExchange exchange, bool deterministic = true) {
  const auto group = thread_group(ranks);
  std::vector<Result> results(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = step_of(group[rank].get(), exchange, deterministic); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Left to right over the micro-batches, in FP32.
Result expected() {
  Result result{gradients_of(0), {0.0f, 1.0f}};
  for (int64_t m = 1; m < kMicroBatches; ++m) {
    const auto part = gradients_of(m);
    for (size_t p = 0; p < part.size(); ++p) {
      for (size_t i = 0; i < part[p].size(); ++i) result.gradients[p][i] += part[p][i];
    }
    result.scalars[0] += 0.1f * static_cast<float>(m);
    result.scalars[1] += 1.0f;
  }
  result.gradients.push_back({0.0f, 0.0f, 0.0f});
  return result;
}

TEST(GradientSum, OneRankAddsInTheOrderOfMicroBatches) {
  const Result found = step_of(nullptr, BucketExchange::overlapped, true);
  EXPECT_EQ(found.gradients, expected().gradients);
  EXPECT_EQ(found.scalars, expected().scalars);
}

TEST(GradientSum, RanksGiveTheBitsOfOne) {
  const Result one = expected();
  for (const BucketExchange exchange : {BucketExchange::naive, BucketExchange::overlapped}) {
    for (const int ranks : {2, 3, 4, 6, 12}) {
      for (const Result& found : step_on(ranks, exchange)) {
        EXPECT_EQ(found.gradients, one.gradients) << ranks;
        EXPECT_EQ(found.scalars, one.scalars) << ranks;
      }
    }
  }
}

// Only those can be copied without a multiprocessor.
TEST(GradientSum, SumsReturnInSlicesOfEqualLength) {
  class Recorder : public SilentGroup {
   public:
    using SilentGroup::SilentGroup;
    void gather(void*, const void*, const RankSlices& slices, int64_t, const char* what,
                Stream) override {
      if (std::string(what).starts_with("the gradients"))
        equal.push_back(slices.filled().count == slices.count);
    }
    void exchange(float*, const float*, const RankSlices&, const char*, Stream) override {
      ++exchanges;
    }
    std::vector<bool> equal;
    int64_t exchanges = 0;
  };
  for (const BucketExchange exchange : {BucketExchange::naive, BucketExchange::overlapped}) {
    for (const int ranks : {2, 3, 4, 6, 12}) {
      Recorder group(0, ranks);
      step_of(&group, exchange, true, false);
      const int64_t buckets = exchange == BucketExchange::naive ? 1 : 6, steps = 2;
      EXPECT_EQ(group.equal, std::vector(static_cast<size_t>(steps * buckets), true)) << ranks;
      EXPECT_EQ(group.exchanges, steps * buckets * kMicroBatches / ranks);
      Recorder any_order(0, ranks);
      step_of(&any_order, exchange, false, false);
      EXPECT_EQ(any_order.exchanges, steps * buckets) << ranks;
    }
  }
}

// Each rank has the sum of its slices, and the partial sums of the whole norm.
TEST(GradientSum, RanksWithAShareGetTheNormOfAll) {
  const auto sums_of = [](Communicator* group, bool deterministic, Parallel parallel) {
    Context context(kCpu);
    context.options.deterministic = deterministic;
    const ContextScope scope(context);
    Vectors model;
    ParameterArena::Options options;
    if (group != nullptr) {
      options.layout = [=](const ParameterTable& table) {
        ArenaLayout layout =
            layout_of(table, parallel, BucketExchange::overlapped, group->size(), group->rank());
        if (parallel != Parallel::ddp) layout.values = layout.weights;  // which the loss reads
        return layout;
      };
    }
    ParameterArena arena(model, options);
    const Tensor partials = full({kernels::norm_chunks(arena.trainable())}, 9.0, DType::f64);
    const int64_t ranks = group == nullptr ? 1 : group->size();
    const auto sum = make_gradient_sum(arena, group, BucketExchange::overlapped,
                                       group == nullptr ? Tensor() : partials);
    const Tensor scalar = full({1}, 1.0), total = full({1}, 9.0);
    sum->prepare(kMicroBatches / ranks);
    for (MicroBatch part{0, kMicroBatches / ranks}; part.index < part.count; ++part.index) {
      sum->begin(part);
      std::vector<Tensor> x;
      for (const auto& values :
           gradients_of(part.index * ranks + (group == nullptr ? 0 : group->rank()))) {
        x.push_back(from_vector(values, {static_cast<int64_t>(values.size())}));
      }
      backward(model.loss(x));
      sum->finish(total, scalar);
    }
    if (group == nullptr) {
      kernels::cpu::sum_squares(partials.raw_data(), arena.grads().data<float>(), arena.trainable(),
                                {});
    }
    std::vector<float> own = arena.grads().to_vector<float>();
    if (group != nullptr) {
      std::vector<float> kept(static_cast<size_t>(arena.trainable()));
      const auto buckets = make_buckets(arena.table(), BucketExchange::overlapped);
      const Placement share = share_of(buckets, group->size(), group->rank());
      own = arena.sums().to_vector<float>();
      for (const auto& [begin, end, place] : share.pieces()) {
        const int64_t at = arena.layout().sums.of(begin);
        std::copy(own.begin() + at, own.begin() + at + end - begin, kept.begin() + begin);
      }
      own = kept;
    }
    return std::pair{own, partials.to_vector<double>()};
  };
  const auto one = sums_of(nullptr, true, Parallel::none);
  for (const auto& [deterministic, parallel] :
       {std::pair{true, Parallel::zero1}, std::pair{false, Parallel::zero1},
        std::pair{true, Parallel::zero2}, std::pair{false, Parallel::zero2},
        std::pair{true, Parallel::ddp}, std::pair{false, Parallel::ddp}}) {
    for (const int ranks : {2, 3, 4}) {
      const auto group = thread_group(ranks);
      std::vector<std::pair<std::vector<float>, std::vector<double>>> found(group.size());
      std::vector<std::thread> threads;
      for (size_t rank = 0; rank < group.size(); ++rank) {
        threads.emplace_back([&, rank, deterministic, parallel] {
          found[rank] = sums_of(group[rank].get(), deterministic, parallel);
        });
      }
      for (std::thread& thread : threads) thread.join();
      std::vector<float> all(one.first.size());
      for (const auto& [own, partials] : found) {
        for (size_t i = 0; i < all.size(); ++i) all[i] += own[i];
        if (deterministic) {
          EXPECT_EQ(partials, one.second) << ranks;
        }
        EXPECT_EQ(partials, found[0].second) << ranks;
      }
      for (size_t i = 0; i < all.size(); ++i) {
        const double bound = deterministic ? 0.0 : 12 * 12 * 4000 * 0x1p-24;
        ASSERT_NEAR(all[i], one.first[i], bound) << ranks << ", element " << i;
      }
    }
  }
}

TEST(GradientSum, AnyOrderIsClose) {
  const Result one = expected();
  for (const BucketExchange exchange : {BucketExchange::naive, BucketExchange::overlapped}) {
    const std::vector<Result> ranks = step_on(3, exchange, false);
    for (const Result& found : ranks) {
      EXPECT_EQ(found.gradients, ranks.front().gradients);
      ASSERT_EQ(found.gradients.size(), one.gradients.size());
      for (size_t p = 0; p < one.gradients.size(); ++p) {
        for (size_t i = 0; i < one.gradients[p].size(); ++i) {
          // Twelve terms of up to 4000, each addition rounds to 2^-24 of a partial sum.
          EXPECT_NEAR(found.gradients[p][i], one.gradients[p][i], 12 * 12 * 4000 * 0x1p-24);
        }
      }
    }
  }
}

// A step that an exception has ended in its second micro-batch leaves nothing to the next one.
TEST(GradientSum, AStepAfterAFailedOneHasItsOwnSums) {
  Context context(kCpu);
  const ContextScope scope(context);
  Vectors model;
  ParameterArena arena(model, {});
  const auto sum = make_gradient_sum(arena, nullptr, BucketExchange::overlapped);
  const Tensor sums = zeros({1}), values = zeros({1});
  sum->prepare(kMicroBatches);
  const auto begin_and_run = [&](int64_t m) {
    sum->begin({m, kMicroBatches});
    std::vector<Tensor> x;
    for (const auto& of_one : gradients_of(m)) {
      x.push_back(from_vector(of_one, {static_cast<int64_t>(of_one.size())}));
    }
    backward(model.loss(x));
  };
  begin_and_run(0);
  sum->finish(sums, values);
  begin_and_run(1);  // and no finish()
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    begin_and_run(m);
    sum->finish(sums, values);
  }
  std::vector<std::vector<float>> found;
  for (const Parameter* p : arena.parameters()) found.push_back(p->grad().to_vector<float>());
  EXPECT_EQ(found, expected().gradients);
}

// A second backward within a micro-batch would add to gradients that are on their way.
TEST(GradientSum, ASecondBackwardIsAnError) {
  const auto group = thread_group(1);
  EXPECT_EQ(step_of(group[0].get(), BucketExchange::overlapped, true).gradients,
            expected().gradients);
  const auto two = thread_group(2);
  const auto twice = [&](Communicator* ranks) {
    Context context(kCpu);
    const ContextScope scope(context);
    Vectors model;
    ParameterArena arena(model, {});
    const auto sum = make_gradient_sum(arena, ranks, BucketExchange::overlapped);
    sum->begin({});
    std::vector<Tensor> x;
    for (const int64_t n : kLengths) x.push_back(ones({n}));
    backward(model.loss(x));
    expect_error([&] { backward(model.loss(x)); }, {"complete for the second time in a backward"});
    ranks->abort("it must");
  };
  std::thread other([&] { twice(two[1].get()); });
  twice(two[0].get());
  other.join();
}

}  // namespace
}  // namespace quern
