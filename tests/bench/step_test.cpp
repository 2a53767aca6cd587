#include "bench/step.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/step_report.h"
#include "support/files.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

Config tiny_config() {
  Config config;
  config.model.size = "shakespeare-cpu";
  apply_size(config.model, config.model.size);
  config.model.layers = 1;
  config.model.vocab_size = 50;
  config.model.context = 8;
  config.train.batch = 2;
  return config;
}

const StepBenchOptions kOnce{{Phase::fwd, Phase::fwdbwd, Phase::step}, 0, 2};

TEST(ParsePhases, InTheOrderGiven) {
  EXPECT_EQ(parse_phases("step,fwd"), (std::vector{Phase::step, Phase::fwd}));
  EXPECT_EQ(parse_phases("fwdbwd"), std::vector{Phase::fwdbwd});
}

TEST(ParsePhases, RefusesWhatItDoesNotKnow) {
  expect_error([] { parse_phases("fwd,bwd"); }, {"'bwd'", "fwd, fwdbwd or step"});
  expect_error([] { parse_phases("stpe"); }, {"did you mean step?"});
  expect_error([] { parse_phases(""); }, {"--phases is empty"});
  EXPECT_THROW(parse_phases("all"), UsageError);
}

TEST(BenchStep, RefusesUnusableCounts) {
  Config config = tiny_config();
  EXPECT_THROW(bench_step(config, {{Phase::fwd}, 0, 0}), UsageError);
  EXPECT_THROW(bench_step(config, {{Phase::fwd}, -1, 1}), UsageError);
  config.model.vocab_size = 0;
  EXPECT_THROW(bench_step(config, kOnce), UsageError);
}

TEST(BenchStep, MeasuresEachPhaseAndItsParts) {
  const StepBenchResult result = bench_step(tiny_config(), kOnce);
  ASSERT_EQ(result.phases.size(), 3u);
  const PhaseResult &fwd = result.phases[0], &fwdbwd = result.phases[1], &step = result.phases[2];
  for (const PhaseResult& phase : result.phases) {
    EXPECT_GT(phase.total.median, 0.0);
    EXPECT_GT(phase.tokens_per_second, 0.0);
    EXPECT_GT(phase.tflops, 0.0);
  }
  EXPECT_EQ(fwd.backward.median, 0.0);
  EXPECT_GT(fwdbwd.backward.median, 0.0);
  EXPECT_EQ(fwdbwd.optimizer.median, 0.0);
  // The parts are the whole: means add up, to rounding.
  EXPECT_NEAR(step.forward.mean + step.backward.mean + step.optimizer.mean, step.total.mean, 1e-9);
}

// fwd holds the weights alone; the others also gradients and Adam's two moments.
TEST(BenchStep, ThePeakOfForwardHasNoOptimizerState) {
  const StepBenchResult result = bench_step(tiny_config(), kOnce);
  const int64_t weights = result.parameters * 4;
  EXPECT_GE(result.phases[0].peak_bytes, weights);
  EXPECT_GE(result.phases[2].peak_bytes, 4 * weights);
  EXPECT_LT(result.phases[0].peak_bytes, 3 * weights);
}

TEST(BenchStep, APhaseThatRunsOutOfMemoryIsReported) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 16 TiB";
#endif
  Config config = tiny_config();
  config.model.d_ff = int64_t{1} << 22;
  config.model.d_model = 1 << 20;  // 2^44 bytes a matrix
  config.model.heads = 1 << 13;
  const StepBenchResult result = bench_step(config, {{Phase::fwd}, 0, 1});
  ASSERT_EQ(result.phases.size(), 1u);
  EXPECT_NE(result.phases[0].out_of_memory, "");
  const auto json = nlohmann::json::parse(step_json(result, "quern-test"));
  EXPECT_EQ(json.at("fwd"), "OOM");
  EXPECT_NE(step_table(result).find("out of memory"), std::string::npos);
}

std::set<std::string> keys_of(const nlohmann::json& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

TEST(StepReport, JsonHasThePeersKeys) {
  const StepBenchResult result = bench_step(tiny_config(), kOnce);
  const std::string line = step_json(result, "quern-0.1.0");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(keys_of(json), (std::set<std::string>{"peer", "size", "params", "batch", "ctx", "vocab",
                                                  "attn", "dtype", "compile", "fwd", "fwdbwd",
                                                  "step", "model_tflop_step", "setup_s"}));
  const std::set<std::string> phase{"ms", "mean", "std", "peak_mib", "tok_s"};
  EXPECT_EQ(keys_of(json.at("fwd")), phase);
  EXPECT_EQ(keys_of(json.at("fwdbwd")), phase);
  std::set<std::string> step = phase;
  step.insert("tflops");
  EXPECT_EQ(keys_of(json.at("step")), step);
  EXPECT_EQ(json.at("attn"), "flash");
  EXPECT_EQ(json.at("dtype"), "fp32");
  EXPECT_EQ(json.at("params"), result.parameters);
}

// torch_lm.py: 3 (2 (params - vocab d) + 2 2 ctx d layers / 2) batch ctx.
TEST(StepReport, CountsFlopsAsThePeer) {
  Config config = tiny_config();
  const StepBenchResult result = bench_step(config, {{Phase::fwd}, 0, 1});
  const auto d = static_cast<double>(config.model.d_model);
  const double matmul = 2.0 * (static_cast<double>(result.parameters) - 50.0 * d);
  const double attention = 2.0 * 2.0 * 8.0 * d * 1.0 / 2.0;
  EXPECT_DOUBLE_EQ(result.flops_per_step, 3.0 * (matmul + attention) * 2.0 * 8.0);
}

class RangeNames : public RangeObserver {
 public:
  RangeNames() { Context::current().range_observer = this; }
  ~RangeNames() override { Context::current().range_observer = nullptr; }
  void on_begin(const char* name) override {
    names.insert(name);
    ++depth;
  }
  void on_end() override { --depth; }

  std::set<std::string> names;
  int depth = 0;
};

TEST(BenchStep, RangesAreNamed) {
  Config config = tiny_config();
  config.compute.attention = AttentionKind::naive;
  RangeNames ranges;
  bench_step(config, {{Phase::step}, 0, 1});
  for (const char* name : {"forward", "backward", "optimizer", "scores", "softmax", "values"}) {
    EXPECT_TRUE(ranges.names.contains(name)) << name;
  }
  EXPECT_EQ(ranges.depth, 0);
}

TEST(Summarize, MedianMeanAndPopulationDeviation) {
  const Summary odd = summarize({5.0, 1.0, 3.0});
  EXPECT_DOUBLE_EQ(odd.median, 3.0);
  EXPECT_DOUBLE_EQ(odd.mean, 3.0);
  EXPECT_DOUBLE_EQ(odd.std, std::sqrt(8.0 / 3.0));
  EXPECT_DOUBLE_EQ(summarize({4.0, 1.0, 2.0, 9.0}).median, 3.0);
  EXPECT_THROW(summarize({}), Error);
}

TEST(Timeline, IntervalsBetweenMarks) {
  Timeline timeline(3);
  EXPECT_TRUE(timeline.intervals().empty());
  for (int i = 0; i < 3; ++i) timeline.mark();
  EXPECT_EQ(timeline.intervals().size(), 2u);
  EXPECT_THROW(timeline.mark(), Error);
}

}  // namespace
}  // namespace quern
