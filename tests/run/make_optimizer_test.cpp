#include "run/make_optimizer.h"

#include <gtest/gtest.h>

#include "config/config_parse.h"
#include "optim/muon.h"
#include "support/two_layers.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

// The weights after three steps of the optimizer that `make` gives for a model's arena.
template <class Make>
std::vector<float> trained_by(const Make& make) {
  Context context(kCpu, 5);
  const ContextScope scope(context);
  TwoLayers model(Precision::fp32);
  const std::unique_ptr<Optimizer> optimizer = make(*model.arena);
  for (int step = 0; step < 3; ++step) {
    for (const Parameter* parameter : model.arena->parameters()) {
      if (parameter->group.frozen) continue;
      copy(parameter->grad(), normal(parameter->shape(), 0.1, 2.0));
      parameter->leaf()->fresh = false;
    }
    optimizer->step(0.01);
  }
  return model.arena->exact_values().to_vector<float>();
}

std::vector<float> trained_with(const std::vector<std::string>& flags) {
  const Config config = parse_args(flags).config;
  return trained_by([&](ParameterArena& arena) { return make_optimizer(arena, config); });
}

template <class T, class Options>
std::vector<float> trained_with(const Options& options) {
  return trained_by([&](ParameterArena& arena) { return std::make_unique<T>(arena, options); });
}

AdamWOptions defaults() {
  return {.seed = static_cast<uint64_t>(Config{}.train.seed)};
}

// Each key changes its own option, and nothing else.
TEST(MakeOptimizer, EveryKeyOfAdamWReachesIt) {
  const std::vector<float> usual = trained_with<AdamW>(defaults());
  EXPECT_EQ(trained_with({}), usual);
  const auto check = [&](const std::vector<std::string>& flags, const auto& change) {
    SCOPED_TRACE(flags[0]);
    AdamWOptions expected = defaults();
    change(expected);
    const std::vector<float> found = trained_with(flags);
    EXPECT_EQ(found, trained_with<AdamW>(expected));
    EXPECT_NE(found, usual);
  };
  check({"--beta1", "0.7"}, [](AdamWOptions& o) { o.beta1 = 0.7; });
  check({"--beta2", "0.7"}, [](AdamWOptions& o) { o.beta2 = 0.7; });
  check({"--eps", "0.5"}, [](AdamWOptions& o) { o.eps = 0.5; });
  check({"--weight_decay", "0.7"}, [](AdamWOptions& o) { o.weight_decay = 0.7; });
  // eps: else AdamW's steps hardly depend on the gradients' scale.
  check({"--clip", "0", "--eps", "0.5"}, [](AdamWOptions& o) { o.clip = 0.0, o.eps = 0.5; });
  const auto bf16 = [](AdamWOptions& o) { o.moments = MomentType::bf16; };
  check({"--moments", "bf16"}, bf16);
  check({"--seed", "9", "--moments", "bf16"}, [&](AdamWOptions& o) { bf16(o), o.seed = 9; });
}

TEST(MakeOptimizer, EveryKeyOfMuonReachesIt) {
  const MuonOptions usual{.adamw = defaults()};
  const std::vector<float> of_usual = trained_with<Muon>(usual);
  EXPECT_EQ(trained_with({"--optimizer", "muon"}), of_usual);
  EXPECT_NE(of_usual, trained_with({}));
  const auto check = [&](const std::string& key, const std::string& value, const auto& change) {
    SCOPED_TRACE(key);
    MuonOptions expected = usual;
    change(expected);
    const std::vector<float> found = trained_with({"--optimizer", "muon", "--" + key, value});
    EXPECT_EQ(found, trained_with<Muon>(expected));
    EXPECT_NE(found, of_usual);
  };
  check("momentum", "0.5", [](MuonOptions& o) { o.momentum = 0.5; });
  check("nesterov", "false", [](MuonOptions& o) { o.nesterov = false; });
  check("muon_lr_scale", "3", [](MuonOptions& o) { o.lr_scale = 3.0; });
  check("muon_adjust", "original", [](MuonOptions& o) { o.adjust = MuonAdjust::original; });
  check("weight_decay", "0.7", [](MuonOptions& o) { o.adamw.weight_decay = 0.7; });
}

}  // namespace
}  // namespace quern
