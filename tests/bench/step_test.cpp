#include "bench/step.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "support/files.h"
#include "support/sanitized.h"
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

TEST(BenchStep, NeedsAVocabulary) {
  Config config = tiny_config();
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
  // Without a warm-up, the first iterations are measured ones: here both, so none remain.
  EXPECT_EQ(step.first.size(), 2u);
  EXPECT_NEAR((step.first[0] + step.first[1]) / 2, step.launched.mean, 1e-9);
  EXPECT_TRUE(std::isnan(step.rest));
  EXPECT_GT(step.total.ci95, 0.0);
  // The parts make up the whole: their means add up, except for rounding.
  EXPECT_NEAR(step.forward.mean + step.backward.mean + step.optimizer.mean, step.total.mean, 1e-9);
}

TEST(BenchStep, TheFirstIterationsAreTheWarmUps) {
  const StepBenchResult result = bench_step(tiny_config(), {{Phase::fwd, Phase::fwdbwd}, 1, 4});
  for (const PhaseResult& phase : result.phases) {
    ASSERT_EQ(phase.first.size(), 3u);
    // Two of the first three iterations are measured ones.
    EXPECT_NEAR(phase.first[1] + phase.first[2] + 2 * phase.rest, 4 * phase.launched.mean, 1e-9);
  }
  const auto later = bench_step(tiny_config(), {{Phase::fwd}, 3, 2}).phases[0];
  EXPECT_NEAR(later.rest, later.launched.mean, 1e-9);
}

// The optimizer needs neither activations nor logits. The phase's peak is its largest part's.
TEST(BenchStep, EachPartHasItsOwnPeak) {
  Config config = tiny_config();
  config.train.batch = 8;
  config.model.context = 64;
  const PhaseResult step = bench_step(config, {{Phase::step}, 0, 2}).phases[0];
  EXPECT_GT(step.forward_peak, 0);
  EXPECT_GT(step.backward_peak, step.optimizer_peak);
  EXPECT_EQ(step.peak_bytes,
            std::max({step.forward_peak, step.backward_peak, step.optimizer_peak}));
}

// fwd holds only the weights; the other phases also gradients and Adam's two moments.
TEST(BenchStep, ThePeakOfForwardHasNoOptimizerState) {
  const StepBenchResult result = bench_step(tiny_config(), kOnce);
  const int64_t weights = result.parameters * 4;
  EXPECT_GE(result.phases[0].peak_bytes, weights);
  EXPECT_GE(result.phases[2].peak_bytes, 4 * weights);
  EXPECT_LT(result.phases[0].peak_bytes, 3 * weights);
}

TEST(BenchStep, APhaseThatRunsOutOfMemoryIsReported) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 16 TiB";
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
  Config config = tiny_config();
  config.compute.recompute = Recompute::blocks;
  const StepBenchResult result = bench_step(config, kOnce);
  const std::string line = step_json(result, "quern-0.1.0");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(keys_of(json),
            (std::set<std::string>{"peer", "size", "params", "batch", "ctx", "vocab", "attn",
                                   "dtype", "kernels", "compile", "keys", "fwd", "fwdbwd", "step",
                                   "model_tflop_step", "setup_s"}));
  std::set<std::string> phase{"ms",   "mean",     "std",    "peak_mib",    "tok_s",
                              "ci95", "first_ms", "fwd_ms", "fwd_peak_mib"};
  EXPECT_EQ(keys_of(json.at("fwd")), phase);
  phase.insert({"bwd_ms", "bwd_peak_mib"});
  EXPECT_EQ(keys_of(json.at("fwdbwd")), phase);
  phase.insert({"opt_ms", "opt_peak_mib", "tflops"});
  EXPECT_EQ(keys_of(json.at("step")), phase);
  EXPECT_EQ(json.at("attn"), "flash");
  EXPECT_EQ(json.at("dtype"), "fp32");
  EXPECT_EQ(json.at("params"), result.parameters);
  EXPECT_EQ(json.at("keys").at("compute").at("recompute"), "blocks");
  StepBenchResult defaults;
  EXPECT_EQ(nlohmann::json::parse(step_json(defaults, "quern")).at("keys"),
            nlohmann::json::object());
}

// Two configurations in one table: a row a phase, and columns for the settings that differ.
TEST(StepRows, ARowAPhaseOfEachConfiguration) {
  Config config = tiny_config();
  Table table(TableFormat::text, kTextWidth, "quern-0.1.0");
  const StepBenchResult result = bench_step(config, {{Phase::fwd, Phase::step}, 0, 2});
  const std::string head = step_rows(table, result, {"batch"});
  EXPECT_NE(head.find("vocab 50, size shakespeare-cpu, ctx 8, precision fp32"), std::string::npos)
      << head;
  EXPECT_NE(head.find("\nbatch phase "), std::string::npos) << head;
  const std::string text = step_rows(table, result, {"batch"});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_TRUE(text.starts_with("2     fwd ")) << text;
  EXPECT_NE(text.find("\n2     step "), std::string::npos) << text;
  Table json(TableFormat::json, kTextWidth, "quern-0.1.0");
  EXPECT_EQ(step_rows(json, result, {"batch"}), step_json(result, "quern-0.1.0") + "\n");
}

TEST(StepRows, OutOfMemoryIsARow) {
  StepBenchResult result;
  result.config = tiny_config();
  result.phases.resize(1);
  result.phases[0].out_of_memory = "no room";
  Table table(TableFormat::text, kTextWidth, "quern");
  const std::string text = step_rows(table, result, {"ctx"});
  EXPECT_TRUE(text.ends_with("\n8      fwd     out of memory\n")) << text;
  Table programs(TableFormat::csv, kTextWidth, "quern");
  const std::string csv = step_rows(programs, result, {});
  EXPECT_NE(csv.find("\r\nquern,shakespeare-cpu,8,2,fp32,flash,fused,50,0,fwd,,"),
            std::string::npos)
      << csv;
  EXPECT_TRUE(csv.ends_with(",OOM\r\n")) << csv;
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
  void on_begin(const Range& range) override {
    names.insert(range.name);
    ++depth;
  }
  void on_end() override { --depth; }

  std::set<std::string> names;
  int depth = 0;

 private:
  ObserveRanges observe_{*this};
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

// From textbook tables: 12.706, 4.303, 3.182, 2.093 for 19, 1.984 for 100, 1.960 in the limit.
TEST(StudentT, IsTheTablesQuantile) {
  EXPECT_NEAR(student_t_975(1), 12.7062, 5e-5);
  EXPECT_NEAR(student_t_975(2), 4.30265, 5e-6);
  EXPECT_NEAR(student_t_975(3), 3.18245, 5e-6);
  EXPECT_NEAR(student_t_975(19), 2.09302, 5e-6);
  EXPECT_NEAR(student_t_975(100), 1.98397, 5e-6);
  EXPECT_NEAR(student_t_975(100000), 1.95998, 5e-5);
  EXPECT_THROW(student_t_975(0), Error);
}

// 1, 3, 5: the sample's deviation is 2, of the mean 2 / sqrt(3), and t of two degrees 4.30265.
TEST(Summarize, ConfidenceOfTheMean) {
  EXPECT_NEAR(summarize({5.0, 1.0, 3.0}).ci95, 4.30265 * 2.0 / std::sqrt(3.0), 1e-5);
  EXPECT_EQ(summarize({2.0, 2.0}).ci95, 0.0);
  EXPECT_TRUE(std::isnan(summarize({2.0}).ci95));
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
