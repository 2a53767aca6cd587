// quern profile's harness on the CPU: every target runs, the phases are the requested ones, and bad
// options are rejected.
#include "bench/profile.h"

#include <gtest/gtest.h>

#include <set>

#include "bench/kernels.h"
#include "support/files.h"
#include "support/training.h"

namespace quern {
namespace {

using testing_support::expect_error;

Config tiny() {
  Config config;
  static_cast<ModelConfig&>(config.model) = testing_support::tiny_model();
  config.train.batch = 2;
  return config;
}

ProfileOptions quick() {
  ProfileOptions options;
  options.warmup = 1;
  options.steps = 2;
  return options;
}

std::set<std::string> names_of(const Profile& profile, RangeKind kind) {
  std::set<std::string> names;
  for (const RangeEvent& range : profile.ranges) {
    if (range.kind == kind) names.insert(profile.names[range.name]);
  }
  return names;
}

double total_ms(const Profile& profile) {
  double ms = 0.0;
  for (const TimeSpan& step : profile.steps) {
    ms += static_cast<double>(step.end - step.begin) / 1e6;
  }
  return ms;
}

TEST(ProfileSteps, TrainingHasItsPhasesModulesAndOps) {
  const Profile profile = profile_steps(tiny(), quick());
  EXPECT_EQ(profile.target, "train");
  EXPECT_EQ(profile.steps.size(), 2u);
  EXPECT_GT(profile.unprofiled_step_ms, 0.0);
  EXPECT_EQ(names_of(profile, RangeKind::phase),
            (std::set<std::string>{"forward", "backward", "optimizer"}));
  std::set<std::string> paths;
  size_t backwards = 0;
  for (const RangeEvent& range : profile.ranges) {
    paths.insert(profile.names[range.module]);
    if (!range.backward || profile.ranges[static_cast<size_t>(range.parent)].backward) continue;
    ++backwards;
    // Every op of this model lies in a module, except the loss's view of the hidden states.
    EXPECT_TRUE(range.module != 0 || profile.names[range.name] == "reshape")
        << profile.names[range.name];
    EXPECT_NE(range.shapes, 0) << profile.names[range.name];
  }
  for (const char* path : {"model.embed_tokens", "model.layers.1.self_attn.qkv_proj",
                           "model.layers.0.mlp.down_proj", "model.norm", "lm_head"}) {
    EXPECT_TRUE(paths.contains(path)) << path;
  }
  EXPECT_GT(backwards, 20u);
}

// Phases follow each other almost without gaps: the ranges account for the step.
TEST(ProfileSteps, PhasesAddUpToTheStep) {
  const Profile profile = profile_steps(tiny(), quick());
  double phases = 0.0;
  for (const RangeEvent& range : profile.ranges) {
    if (range.parent < 0) phases += static_cast<double>(range.end - range.begin) / 1e6;
  }
  EXPECT_LE(phases, total_ms(profile));
  EXPECT_GT(phases, 0.9 * total_ms(profile));  // zeroing the gradients is in no phase
}

TEST(ProfileSteps, StopsWhereItIsTold) {
  ProfileOptions options = quick();
  options.phase = Phase::fwd;
  Profile profile = profile_steps(tiny(), options);
  EXPECT_EQ(profile.target, "forward");
  EXPECT_EQ(names_of(profile, RangeKind::phase), std::set<std::string>{"forward"});
  options.phase = Phase::fwdbwd;
  profile = profile_steps(tiny(), options);
  EXPECT_EQ(profile.target, "forward and backward");
  EXPECT_EQ(names_of(profile, RangeKind::phase), (std::set<std::string>{"forward", "backward"}));
}

TEST(ProfileSteps, RecomputedOpsAreForwardsInTheBackward) {
  Config config = tiny();
  config.compute.recompute = Recompute::blocks;
  const Profile profile = profile_steps(config, quick());
  size_t again = 0;
  for (const RangeEvent& range : profile.ranges) {
    if (range.kind != RangeKind::op || range.backward) continue;
    const bool in_block = profile.names[range.module].starts_with("model.layers.");
    if (in_block && profile.names[range.phase] == "backward") ++again;
  }
  EXPECT_GT(again, 10u);
}

TEST(ProfileSteps, EveryPartRuns) {
  Config config = tiny();
  const std::set<std::string> large{"adamw", "adamw_bf16_moments", "global_norm",
                                    "cross_entropy_fwd_bwd",
                                    "cross_entropy_in_place"};  // seconds on a small machine
  for (const std::string& target : profile_targets()) {
    if (target == "train" || large.contains(target)) continue;
    for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
      config.compute.kernels = kernels;
      config.compute.attention =
          kernels == KernelKind::fused ? AttentionKind::flash : AttentionKind::naive;
      ProfileOptions options = quick();
      options.target = target;
      options.steps = 1;
      options.warmup = 0;
      const Profile profile = profile_steps(config, options);
      EXPECT_EQ(profile.target, target);
      EXPECT_EQ(profile.steps.size(), 1u);
      EXPECT_FALSE(names_of(profile, RangeKind::phase).empty()) << target;
    }
  }
}

TEST(ProfileSteps, NaivePartsAreTheirSmallOps) {
  Config config = tiny();
  ProfileOptions options = quick();
  options.target = "softmax";
  EXPECT_EQ(names_of(profile_steps(config, options), RangeKind::op),
            std::set<std::string>{"softmax"});
  config.compute.kernels = KernelKind::naive;
  EXPECT_EQ(names_of(profile_steps(config, options), RangeKind::op),
            (std::set<std::string>{"max", "sub", "exp", "sum", "div"}));
}

TEST(ProfileSteps, RefusesBadOptions) {
  const auto refuse = [](auto change, std::initializer_list<std::string> parts) {
    Config config = tiny();
    ProfileOptions options;
    change(config, options);
    expect_error([&] { profile_steps(config, options); }, parts);
  };
  refuse([](Config&, ProfileOptions& o) { o.target = "softmx"; },
         {"--target is 'softmx'", "attention", "did you mean softmax"});
  refuse([](Config& c, ProfileOptions&) { c.model.vocab_size = 0; }, {"--vocab is 0"});
  refuse([](Config&, ProfileOptions& o) { o.graph = true; }, {"--graph needs a GPU"});
  refuse(
      [](Config&, ProfileOptions& o) {
        o.target = "gelu";
        o.phase = Phase::fwd;
      },
      {"--phases is fwd", "found gelu"});
  refuse(
      [](Config&, ProfileOptions& o) {
        o.target = "gelu";
        o.graph = true;
      },
      {"--graph is for whole steps"});
}

// Parameters, gradients and moments exist from the beginning: the trace is complete.
TEST(ProfileSteps, TheMemoryIsTracedFromTheModelsMaking) {
  const MemoryTrace trace = trace_memory(tiny(), quick());
  std::set<MemoryCategory> categories;
  for (const TracedAllocation& one : trace.allocations) categories.insert(one.category);
  for (const MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients,
                                        MemoryCategory::optimizer, MemoryCategory::activations}) {
    EXPECT_TRUE(categories.contains(category)) << name_of(category);
  }
  size_t forwards = 0;
  for (const TracedPhase& phase : trace.phases) forwards += trace.names[phase.name] == "forward";
  EXPECT_EQ(forwards, 2u);
}

TEST(ProfileSteps, LeavesNoObserverBehind) {
  profile_steps(tiny(), quick());
  const Context& context = Context::current();
  EXPECT_EQ(context.observer<InputObserver>(), nullptr);
  EXPECT_EQ(context.allocator()->set_observer(nullptr), nullptr);
}

}  // namespace
}  // namespace quern
