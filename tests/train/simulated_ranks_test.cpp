// Whole trainings on simulated ranks (support/thread_group.h). A seed draws the training, its
// ranks, the delays and order in which they come to each collective, and a rank that dies or is
// silent at one of them. QUERN_SEEDS=FIRST-LAST sets the seeds; one number repeats that seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>

#include "autograd/ops/cross_entropy.h"
#include "base/philox.h"
#include "config/config.h"
#include "dist/rank_team.h"
#include "run/make_optimizer.h"
#include "run/weights.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr int64_t kSteps = 2;
constexpr uint64_t kSeeds = kSanitized ? 300 : 10'000;

// The settings on which the numbers of a training depend.
struct Training {
  int64_t layers = 1, d_ff = 8;
  Precision precision = Precision::fp32;
  KernelKind kernels = KernelKind::fused;
  double dropout = 0.0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t micro_batches = 1;  // of a step, over all ranks

  bool masks() const { return dropout > 0.0; }  // targets; fewer kinds than one more draw

  friend auto operator<=>(const Training&, const Training&) = default;
};

// The settings on which they do not depend.
struct Team {
  int ranks = 1;
  Parallel parallel = Parallel::ddp;
};

struct Simulation {
  Training training;
  Team team, second;       // the second one goes on after a death
  int64_t save_every = 1;  // steps
  ThreadGroupOptions group;

  bool kills() const { return group.dying_rank >= 0; }
  std::string text() const {
    const auto name = [](const Team& t) { return cat(t.ranks, " x ", name_of(t.parallel)); };
    return cat(name(team), ", then ", name(second), "; ", training.micro_batches,
               " micro-batches, ", training.layers, " layers, d_ff ", training.d_ff,
               training.precision == Precision::bf16 ? ", bf16" : ", fp32",
               training.kernels == KernelKind::naive ? ", naive" : ", fused",
               training.optimizer == OptimizerKind::muon ? ", muon" : ", adamw", ", dropout ",
               training.dropout, "; saves every ", save_every, group.eager ? "; eager" : "",
               "; rank ", group.dying_rank, " is lost at ", group.dying_at, ", silence ",
               group.silence);
  }
};

Simulation simulation_of(uint64_t seed) {
  uint64_t index = 0;
  const auto one_of = [&](const auto& choices) {
    return choices[kernels::philox_integer(~seed, index++, static_cast<uint32_t>(choices.size()))];
  };
  const auto below = [&](int64_t bound) {
    return static_cast<int>(kernels::philox_integer(~seed, index++, static_cast<uint32_t>(bound)));
  };
  const std::array parallel{Parallel::ddp, Parallel::zero1, Parallel::zero2, Parallel::fsdp};
  Simulation s;
  s.team = {1 + below(4), one_of(parallel)};
  Training& t = s.training;
  t.micro_batches = s.team.ranks * one_of(std::array{1, 1, 1, 2, 3});
  do {
    s.second = {1 + below(4), one_of(parallel)};
  } while (t.micro_batches % s.second.ranks != 0);
  t.layers = one_of(std::array{1, 1, 1, 1, 2, 3});
  t.d_ff = one_of(std::array{8, 32, 64});  // a block has parts for 1, 3 or 4 ranks
  t.precision = one_of(std::array{Precision::fp32, Precision::bf16});
  t.kernels = below(5) == 0 ? KernelKind::naive : KernelKind::fused;  // the naive ones are slow
  t.dropout = one_of(std::array{0.0, 0.1});
  t.optimizer = below(4) == 0 ? OptimizerKind::muon : OptimizerKind::adamw;
  s.save_every = 1 + below(kSteps);
  s.group = {.seed = seed, .eager = below(2) == 0};
  if (s.team.ranks == 1 || below(3) == 0) return s;
  s.group.dying_rank = below(s.team.ranks);
  s.group.dying_at = below(kSteps * (t.layers + 2) * (t.micro_batches / s.team.ranks + 4));
  s.group.silence = one_of(std::array{0.0, 0.0, 0.5, 2.0});  // half a limit is not too late
  return s;
}

// A tensor, or what a rank has of it: these elements.
struct Part {
  std::vector<int64_t> places;
  std::vector<float> values;
};

// A training after some of its steps: that of one rank, or one rank's share of it.
struct State {
  std::vector<double> losses;           // of the steps
  std::map<std::string, Part> tensors;  // weights, and the optimizer's state
  int64_t updates = 0;                  // as the optimizer counts them
  bool torn = false;  // lost at an exchange of Muon's, which is within an update: not saved
  std::string error;  // that ended the training

  int64_t steps() const { return std::ssize(losses); }
};

// One rank's training, as Trainer has it, but with memory in place of files.
class RankTraining {
 public:
  RankTraining(const Training& training, Parallel parallel, Communicator* group)
      : training_(training),
        team_(group),
        config_(config_for(training, parallel)),
        scope_(context_),
        instance_(config_.model, config_.compute, InitScheme::normal, true, 1,
                  layout_for(config_, group)),
        shards_(make_shards(instance_.arena, group, config_)),
        optimizer_(make_optimizer(instance_.arena, config_, group)),
        step_(instance_, *optimizer_, false, group, exchange_of(config_.compute), shards_.get()) {}

  // state: a whole one.
  void restore(const State& state) {
    losses_ = state.losses;
    for (const OptimizerBuffer& buffer : buffers()) {
      for (const NamedSlice& slice : buffer.slices) {
        const Tensor whole =
            from_vector(state.tensors.at(buffer.prefix + slice.name).values, {slice.shape.numel()});
        const int64_t end = slice.begin + whole.numel();
        if (buffer.share) {
          copy_to_places(buffer.data, *buffer.share, slice.begin, whole);
        } else if (buffer.low.defined()) {
          instance_.arena.set_values(slice.begin, whole);
        } else {
          copy(buffer.data.slice(0, slice.begin, end), whole);
        }
      }
    }
    instance_.arena.refresh_copies();
    optimizer_->set_progress(state.steps(), 0);
  }

  // Calls save() after each step that is due and the last.
  template <class Save>
  void run(int64_t save_every, const Save& save) {
    const int64_t ranks = team_.count(), count = training_.micro_batches / ranks;
    instance_.model.start_dropout(
        1, static_cast<uint64_t>(std::ssize(losses_) * training_.micro_batches + team_.rank()),
        static_cast<uint64_t>(ranks));
    while (std::ssize(losses_) < kSteps) {
      const int64_t done = std::ssize(losses_);
      optimizer_->set_learning_rate(0.01 * static_cast<double>(done + 1));
      for (MicroBatch part{0, count}; part.index < count; ++part.index) {
        const int64_t m = done * training_.micro_batches + part.index * ranks + team_.rank();
        step_.run(tokens_of(2 * m), targets_of(m), part, counted_in(done));
      }
      losses_.push_back(step_.loss().item());
      if (std::ssize(losses_) % save_every == 0 || std::ssize(losses_) == kSteps) save();
    }
  }

  // The whole training; on the first rank alone. Every rank calls it.
  State whole() {
    State state = own();
    if (!shards_) return state;
    state.tensors.clear();
    for (OptimizerBuffer buffer : buffers()) {
      if (!team_.leads()) buffer.slices.clear();
      const std::vector<float> all = shards_->gathered(buffer).to_vector<float>();
      auto next = all.begin();
      for (const NamedSlice& slice : buffer.slices) {
        const auto begin = std::exchange(next, next + slice.shape.numel());
        Part& part = state.tensors[buffer.prefix + slice.name];
        part.values.assign(begin, next);
        part.places.resize(part.values.size());
        std::iota(part.places.begin(), part.places.end(), int64_t{0});
      }
    }
    return state;
  }

  State own() const {
    State state;
    state.losses = losses_;
    for (const OptimizerBuffer& buffer : buffers()) {
      const Tensor exact =
          buffer.low.defined() ? join_weights(buffer.data, buffer.low) : buffer.data;
      const float* const data = exact.data<float>();
      for (const NamedSlice& slice : buffer.slices) {
        Part& part = state.tensors[buffer.prefix + slice.name];
        const auto take = [&](int64_t begin, int64_t end, int64_t place) {
          for (int64_t i = begin; i < end; ++i) part.places.push_back(i - slice.begin);
          part.values.insert(part.values.end(), data + place, data + place + end - begin);
        };
        const int64_t end = slice.begin + slice.shape.numel();
        if (buffer.share) {
          buffer.share->for_each_part(slice.begin, end, take);
        } else {
          take(slice.begin, end, slice.begin);
        }
      }
    }
    state.updates = optimizer_->state().step;
    state.torn = optimizer_->torn() && shards_ && training_.optimizer == OptimizerKind::muon;
    return state;
  }

  const RankTeam& team() const { return team_; }

 private:
  std::vector<OptimizerBuffer> buffers() const {
    std::vector<OptimizerBuffer> buffers = optimizer_->buffers();
    buffers.push_back(values_of(instance_.arena));
    return buffers;
  }

  static constexpr int64_t kVocabulary = 11, kContext = 3;

  static Config config_for(const Training& training, Parallel parallel) {
    Config config;
    ModelConfig& model = config.model;
    model = {.vocab_size = kVocabulary,
             .context = kContext,
             .d_model = 8,
             .d_ff = training.d_ff,
             .layers = training.layers,
             .heads = 1};
    config.compute.precision = training.precision;
    config.compute.kernels = training.kernels;
    config.compute.dropout = training.dropout;
    config.optimizer.kind = training.optimizer;
    config.parallel.parallel = parallel;
    return config;
  }

  static Tensor tokens_of(int64_t number) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kContext; ++i) {
      const auto index = static_cast<uint64_t>(number * kContext + i);
      tokens.push_back(static_cast<int32_t>(kernels::philox_integer(7, index, kVocabulary)));
    }
    return from_vector(tokens, {1, kContext});
  }

  // Masked targets of micro-batch m, from none to all.
  int64_t masked_in(int64_t m) const {
    const auto index = static_cast<uint64_t>(m);
    return training_.masks() ? kernels::philox_integer(8, index, kContext + 1) : 0;
  }
  Tensor targets_of(int64_t m) const {
    Tensor targets = tokens_of(2 * m + 1);
    std::fill_n(targets.data<int32_t>(), masked_in(m), kIgnoreIndex);
    return targets;
  }
  std::optional<int64_t> counted_in(int64_t step) const {
    if (!training_.masks()) return std::nullopt;
    int64_t counted = 0;
    for (int64_t i = 0; i < training_.micro_batches; ++i) {
      counted += kContext - masked_in(step * training_.micro_batches + i);
    }
    return counted;
  }

  Training training_;
  RankTeam team_;
  Config config_;
  Context context_{kCpu};
  ContextScope scope_;
  ModelInstance instance_;
  std::unique_ptr<ShardedWeights> shards_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainingStep step_;
  std::vector<double> losses_;
};

// The states of one rank without others, from the first to the last.
const std::vector<State>& undisturbed(const Training& training) {
  static std::map<Training, std::vector<State>> known;
  std::vector<State>& states = known[training];
  if (states.empty()) {
    RankTraining one(training, Parallel::ddp, nullptr);
    states.push_back(one.own());
    one.run(1, [&] { states.push_back(one.own()); });
  }
  return states;
}

// Trains on the team from `saved`, which is then the last state that was saved. Returns what each
// rank ended with.
std::vector<State> train(const Simulation& s, const Team& team, const ThreadGroupOptions& group,
                         State& saved) {
  std::vector<State> ends(static_cast<size_t>(team.ranks));
  const State begin = saved;
  const auto rank = [&](Communicator* ranks) {
    RankTraining training(s.training, team.parallel, ranks);
    const RankTeam& all = training.team();
    training.restore(begin);
    std::string error;
    try {
      training.run(s.save_every, [&] {
        const State whole = training.whole();
        all.on_leader([&] { saved = whole; }, "a checkpoint");
      });
    } catch (const Error& caught) {
      error = caught.what();
    }
    State& end = ends[static_cast<size_t>(all.rank())];
    end = training.own();
    end.error = error;
    return std::string();
  };
  if (team.ranks == 1) {
    rank(nullptr);
  } else {
    run_thread_ranks(team.ranks, group, [&](Communicator& ranks) { return rank(&ranks); });
  }
  return ends;
}

// Where a rank's state is not the undisturbed one after as many steps; "" if nowhere.
std::string difference(const State& found, const std::vector<State>& undisturbed) {
  const State& expected = undisturbed[static_cast<size_t>(found.steps())];
  if (found.losses != expected.losses) return "other losses";
  if (found.torn) return found.error.empty() ? "torn without an error" : "";
  if (found.updates != found.steps()) return cat(found.updates, " updates");
  if (found.tensors.size() != expected.tensors.size()) return "other tensors";
  for (const auto& [name, part] : found.tensors) {
    const std::vector<float>& whole = expected.tensors.at(name).values;
    for (size_t i = 0; i < part.values.size(); ++i) {
      if (part.values[i] != whole[static_cast<size_t>(part.places[i])]) return "other " + name;
    }
  }
  return "";
}

// "gather of the losses" of "rank 0 of 2: gather of the losses: rank 1 is gone".
std::string collective_of(const std::string& error) {
  const size_t begin = std::min(error.find(": "), error.size() - 2) + 2;
  return error.substr(begin, error.find(": ", begin) - begin);
}

// A description of what is wrong with a rank's error; "" if nothing is.
std::string wrong_error(const Simulation& s, const std::vector<State>& ends, int rank) {
  const std::string& error = ends[static_cast<size_t>(rank)].error;
  const int lost = s.group.dying_rank;
  const std::string& of_other = ends[static_cast<size_t>((lost + 1) % s.team.ranks)].error;
  const bool silent = s.group.silence > 0.0;
  if (silent && rank == lost && error.empty()) return "";  // it comes after the others' end
  const auto has = [&](const std::string& text) { return error.find(text) != std::string::npos; };
  if (!error.starts_with(cat("rank ", rank, " of ", s.team.ranks, ": "))) return "no rank";
  // An eager rank that needs nothing from the lost one comes further, and a silent rank returns.
  const bool may_differ = s.group.eager || (silent && rank == lost);
  if (!may_differ && collective_of(error) != collective_of(of_other)) return "other collective";
  if (!has(" of the ") && !has(" of a checkpoint: ")) return "no collective";
  if (silent) return has(cat("no answer from rank ", lost, " within ")) ? "" : "no silent rank";
  return rank == lost || error.ends_with(cat(": rank ", lost, " is gone")) ? "" : "no lost rank";
}

struct Counts {
  int64_t whole = 0, lost = 0, silent = 0, resumed = 0;  // trainings
};

// Runs a seed's simulation. Returns the first broken promise; "" when all are kept.
std::string broken_promise(const Simulation& s, Counts& counts) {
  const std::vector<State>& expected = undisturbed(s.training);
  State saved = expected.front();
  const std::vector<State> ends = train(s, s.team, s.group, saved);
  const auto errors = std::ranges::count_if(ends, [](const State& e) { return !e.error.empty(); });
  int64_t first = kSteps, last = 0;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const State& end = ends[rank];
    std::string wrong = difference(end, expected);
    first = std::min(first, end.steps());
    last = std::max(last, end.steps());
    if (wrong.empty() && errors > 0) {
      wrong = s.kills() ? wrong_error(s, ends, static_cast<int>(rank)) : "failed without reason";
    } else if (wrong.empty() && end.steps() != kSteps) {
      wrong = "too few steps";
    }
    if (!wrong.empty()) {
      return cat("rank ", rank, " after step ", end.steps(), ": ", wrong,
                 end.error.empty() ? "" : "; its error is: ", end.error);
    }
  }
  if (last - first > 1) return cat("ranks ended after steps ", first, " to ", last);
  (errors == 0 ? counts.whole : s.group.silence > 0.0 ? counts.silent : counts.lost) += 1;
  if (errors == 0 && s.team.ranks > 1) return "";
  if (s.group.silence > 0.0 && s.group.silence < 1.0) return "a rank that came in time is lost";
  if (s.team.ranks == 1) saved = expected[1];
  if (saved.steps() == 0) return "";

  if (const std::string wrong = difference(saved, expected); !wrong.empty()) {
    return cat("the saved state of step ", saved.steps(), ": ", wrong);
  }
  for (const State& end :
       train(s, s.second, {.seed = ~s.group.seed, .eager = s.group.eager}, saved)) {
    const std::string wrong = end.error + difference(end, expected);
    if (!wrong.empty() || end.steps() != kSteps) return cat("resumed: ", wrong);
  }
  counts.resumed += 1;
  return "";
}

std::pair<uint64_t, uint64_t> seeds() {
  const char* const text = std::getenv("QUERN_SEEDS");
  if (text == nullptr) return {1, kSeeds};
  char* end = nullptr;
  const uint64_t first = std::strtoull(text, &end, 10);
  const uint64_t last = *end == '-' ? std::strtoull(end + 1, &end, 10) : first;
  QUERN_CHECK(*end == '\0' && 0 < first && first <= last, "QUERN_SEEDS is '", text,
              "', expected FIRST-LAST, from 1 on, or one seed");
  return {first, last};
}

TEST(SimulatedRanks, KeepTheirPromisesUnderEverySeed) {
  const auto [first, last] = seeds();
  Counts counts;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Simulation simulation = simulation_of(seed);
    const std::string broken = broken_promise(simulation, counts);
    ASSERT_EQ(broken, "") << "seed " << seed << ": " << simulation.text()
                          << "\nrepeat it: QUERN_SEEDS=" << seed
                          << " quern_tests --gtest_filter=SimulatedRanks.*";
  }
  std::cout << counts.whole << " undisturbed trainings, " << counts.lost << " with a lost rank, "
            << counts.silent << " with a silent one, " << counts.resumed << " resumed\n";
  if (last - first < 200) return;
  const int64_t few = static_cast<int64_t>(last - first) / 20;
  for (const int64_t count : {counts.whole, counts.lost, counts.silent, counts.resumed}) {
    EXPECT_GT(count, few);
  }
}

}  // namespace
}  // namespace quern
