// A NaN planted in each class of tensors at a random step: training ends, names where it is, and
// saves nothing that is not finite; or it skips the step and goes on.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "run/make_context.h"
#include "run/make_optimizer.h"
#include "run/train_state.h"
#include "support/sanitized.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

// Sets every bit of an element: a NaN in each floating format.
void plant(void* data, DType dtype, int64_t element) {
  const int64_t bytes = size_of(dtype);
  std::memset(static_cast<char*>(data) + element * bytes, 0xff, static_cast<size_t>(bytes));
}

struct Mode {
  std::string name;
  Precision precision;
  KernelKind kernels;
  AttentionKind attention;
  OptimizerKind optimizer = OptimizerKind::adamw;
  int64_t accumulate = 1;
};

// Counts events of which each step has `each`: true for number `nth` in the steps from the
// first_step'th to the last_step'th.
struct Turn {
  int64_t each = INT64_MAX, nth = -1;
  int64_t first_step = 1, last_step = INT64_MAX;
  int64_t seen = 0;

  bool next() {
    const int64_t event = seen++, step = event / each + 1;
    return event % each == nth && first_step <= step && step <= last_step;
  }
};

class PlantedNan : public TrainerTest, public testing::WithParamInterface<Mode> {
 protected:
  static constexpr int64_t kSteps = 12;

  Config planted_config() {
    Config c = config(cat("run", runs_++));
    c.compute.precision = GetParam().precision;
    c.compute.kernels = GetParam().kernels;
    c.compute.attention = GetParam().attention;
    c.optimizer.kind = GetParam().optimizer;
    c.train.accumulate = GetParam().accumulate;
    c.train.steps = kSteps;
    c.train.checkpoint_every = 2;
    c.train.keep = 20;
    return c;
  }

  // The files of a checkpoint: weights and moments.
  static std::pair<std::string, std::string> files_of(const Config& c, int64_t step) {
    const fs::path checkpoint = checkpoint_path(fs::path(c.run.out) / "checkpoints", step);
    return {read_file(checkpoint / "model.safetensors"),
            read_file(checkpoint / "optimizer.safetensors")};
  }

  // A run without a NaN, with a checkpoint after each step.
  const Config& whole() {
    if (whole_.run.out.empty()) {
      whole_ = planted_config();
      whole_.train.checkpoint_every = 1;
      struct Start : Recorded {
        Config resolved;
        void on_start(const RunSummary& run) override { resolved = run.config; }
      } start;
      train(whole_, start);
      resolved_ = start.resolved;
    }
    return whole_;
  }

  // The parameter with an element of a buffer in the arena's layout; `part`: of a fused one.
  std::string parameter_at(int64_t element, bool tied, bool part) {
    whole();
    ModelConfig model = resolved_.model;
    model.tied = tied;
    ModelInstance instance(model, resolved_.compute, InitScheme::normal, true, 1);
    for (const ParameterEntry& entry : instance.arena.table().entries()) {
      for (const NamedSlice& slice : entry.slices()) {
        const int64_t end = slice.begin + slice.shape.numel();
        if (slice.begin <= element && element < end) return part ? slice.name : entry.name;
      }
    }
    return "none";
  }

  // Trains with `observer` attached and returns the error's message. Every checkpoint must be
  // finite.
  template <class Observer>
  std::string message_of(const Config& c, Observer& observer, Recorded& recorded) {
    std::string message;
    {
      const auto context = make_context(c.compute, static_cast<uint64_t>(c.train.seed));
      const ContextScope scope(*context);
      const std::shared_ptr<void> attached = observer.attach(*context);
      try {
        Trainer(c, recorded).run();
      } catch (const Error& error) {
        message = error.what();
      }
    }
    const fs::path checkpoints = fs::path(c.run.out) / "checkpoints";
    EXPECT_FALSE(checkpoint_steps(checkpoints).empty());
    for (const int64_t step : checkpoint_steps(checkpoints)) {
      const Checkpoint checkpoint = open_checkpoint(checkpoint_path(checkpoints, step));
      for (const SafetensorsShards* shards : {&checkpoint.weights, &checkpoint.moments}) {
        for (const std::string& name : shards->names()) {
          const TensorView tensor = shards->tensor(name);
          std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
          std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
          EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
              << "step " << step << ", " << name;
        }
      }
    }
    return message;
  }

  // The run of `c` ended at step `step`, and saved the weights and moments of the step before, bit
  // for bit.
  void expect_stopped_at(int64_t step, const Config& c, const std::string& message) {
    EXPECT_TRUE(message.starts_with(cat("step ", step, ": loss "))) << message;
    const std::vector<int64_t> saved = checkpoint_steps(fs::path(c.run.out) / "checkpoints");
    EXPECT_EQ(saved.back(), step - 1) << message;
    for (const int64_t one : saved) {
      EXPECT_TRUE(files_of(c, one) == files_of(whole(), one)) << "step " << one << ": " << message;
    }
  }

  // A random one among `each` events of a step, in micro-batch `part`. The first `omitted` ones of
  // a micro-batch are not chosen.
  Turn random_turn(int64_t each, int64_t part, int64_t omitted = 0) {
    const int64_t of_part = each / GetParam().accumulate;
    return {each, part * of_part + omitted + random_below(of_part - omitted), random_step()};
  }

  int64_t random_step() { return static_cast<int64_t>(4 + random_() % 6); }
  int64_t random_below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  std::mt19937 random_{20261124};
  int runs_ = 0;
  Config whole_, resolved_;
};

// Plants a NaN in one output of an op in the forward, and keeps the modules around it.
struct PlantInOutputs : OutputObserver, RangeObserver {
  std::string op;
  Turn turn;
  std::map<std::string, int64_t> outputs;  // of each op so far
  std::string modules;                     // as in the message

  void on_begin(const Range& range) override { ranges_.emplace_back(range.kind, range.name); }
  void on_end() override { ranges_.pop_back(); }
  void on_output(const char* name, const Tensor& output) override {
    if (ranges_.empty() || ranges_[0].second != "forward") return;
    if (!is_floating(output.dtype()) || output.numel() == 0 || counts_targets(name)) return;
    ++outputs[name];
    if (op != name || !turn.next()) return;
    plant(const_cast<void*>(output.raw_data()), output.dtype(), 0);
    modules = "forward";
    for (const auto& [kind, range] : ranges_) {
      if (kind == RangeKind::module) modules += "." + range;
    }
  }
  std::shared_ptr<void> attach(Context&) {
    struct Both {
      Observe<OutputObserver> outputs;
      ObserveRanges ranges;
    };
    return std::shared_ptr<Both>(new Both{Observe<OutputObserver>(*this), ObserveRanges(*this)});
  }

 private:
  // Cross-entropy's twin computes with targets in floating point. A NaN there becomes a target.
  bool counts_targets(const std::string& name) const {
    return (name == "mul" || name == "scale") && ranges_[1].second == "naive_cross_entropy";
  }

  std::vector<std::pair<RangeKind, std::string>> ranges_;  // open ones
};

TEST_P(PlantedNan, InEachOpsOutputIsNamedByOpAndModule) {
  PlantInOutputs none;
  Recorded recorded;
  Config c = planted_config();
  c.train.steps = 1;
  EXPECT_EQ(message_of(c, none, recorded), "");
  ASSERT_GE(none.outputs.size(), 6u);
  none.outputs.erase("causal_mask");  // its -inf are no fault; softmax is named for it
  for (const auto& [op, count] : none.outputs) {
    SCOPED_TRACE(op);
    PlantInOutputs planter;
    planter.op = op;
    planter.turn = random_turn(count, random_below(GetParam().accumulate));
    c = planted_config();
    const std::string message = message_of(c, planter, recorded);
    expect_stopped_at(planter.turn.first_step, c, message);
    const std::string found = cat("The first non-finite tensor is ", planter.modules);
    EXPECT_NE(message.find(found), std::string::npos) << message << "\n" << planter.modules;
    EXPECT_NE(message.find(cat(": output of ", op, ". ")), std::string::npos) << message;
    if (op == "rope_attention" || op == "softmax") {
      EXPECT_TRUE(planter.modules == "forward.model.layers.0.self_attn" ||
                  planter.modules == "forward.model.layers.1.self_attn")
          << planter.modules;
    }
  }
}

// Plants a NaN in the gradient of one output in each step.
struct PlantInGradients : GradientObserver {
  static constexpr int64_t kUnread = 1;  // the loss's: fused cross-entropy knows that it is 1
  Turn turn;

  void on_gradient(uint64_t, int, int, const Tensor& grad) override {
    if (turn.next()) plant(const_cast<void*>(grad.raw_data()), grad.dtype(), 0);
  }
  std::shared_ptr<void> attach(Context&) {
    return std::make_shared<Observe<GradientObserver>>(*this);
  }
};

TEST_P(PlantedNan, InAGradientIsNamedByParameter) {
  PlantInGradients none;
  Recorded recorded;
  Config c = planted_config();
  c.train.steps = 1;
  EXPECT_EQ(message_of(c, none, recorded), "");
  for (int i = 0; i < 6; ++i) {
    PlantInGradients planter;
    planter.turn = random_turn(none.turn.seen, i % GetParam().accumulate, planter.kUnread);
    SCOPED_TRACE(cat("gradient ", planter.turn.nth, " in step ", planter.turn.first_step));
    c = planted_config();
    const std::string message = message_of(c, planter, recorded);
    expect_stopped_at(planter.turn.first_step, c, message);
    // The twins' rules are ops too, and are seen before the parameter.
    const bool naive = GetParam().kernels == KernelKind::naive;
    const std::string where = "The first non-finite tensor is ";
    EXPECT_TRUE(message.find(cat(where, "gradient of model.")) != std::string::npos ||
                message.find(cat(where, "gradient of lm_head.weight")) != std::string::npos ||
                (naive && message.find(cat(where, "backward.")) != std::string::npos))
        << message;
  }
}

// Knows the memory of a name, and plants a NaN in a random element of it that is not zero: zeros
// are padding, which is no part of any tensor.
struct PlantInMemory : AllocationObserver {
  std::string name;
  DType dtype = DType::f32;
  std::mt19937* random = nullptr;
  int64_t element = -1;  // the last planted one

  void on_allocate(const Allocation& a) override {
    if (a.name != name) return;
    data_ = a.data;
    elements_ = a.bytes / size_of(dtype);
  }
  void on_release(const Allocation& a) override {
    if (a.data == data_) data_ = nullptr;
  }
  void plant_one() {
    ASSERT_NE(data_, nullptr) << name;
    do {
      element = static_cast<int64_t>((*random)() % static_cast<uint64_t>(elements_));
    } while (is_zero());
    plant(data_, dtype, element);
  }
  std::shared_ptr<void> attach(Context& context) {
    Allocator* const allocator = context.allocator().get();
    allocator->set_observer(this);
    return {this, [allocator](void*) { allocator->set_observer(nullptr); }};
  }

 private:
  bool is_zero() const {
    const int64_t bytes = size_of(dtype);
    const char* first = static_cast<const char*>(data_) + element * bytes;
    return std::all_of(first, first + bytes, [](char c) { return c == 0; });
  }

  void* data_ = nullptr;
  int64_t elements_ = 0;
};

// Between the micro-batches of a step, in the sums of their gradients.
struct PlantInSums : PlantInMemory, RangeObserver {
  Turn turn;  // of micro-batches

  void on_begin(const Range& range) override {
    if (range.name == std::string_view("forward") && turn.next()) plant_one();
  }
  void on_end() override {}
  std::shared_ptr<void> attach(Context& context) {
    struct Both {
      std::shared_ptr<void> memory;
      ObserveRanges ranges;
    };
    return std::shared_ptr<Both>(new Both{PlantInMemory::attach(context), ObserveRanges(*this)});
  }
};

class PlantedNanOfMicroBatches : public PlantedNan {};

TEST_P(PlantedNanOfMicroBatches, InTheirSumsIsNamedByParameter) {
  for (int i = 0; i < 3; ++i) {
    PlantInSums planter;
    planter.name = "gradients";
    planter.random = &random_;
    planter.turn = random_turn(GetParam().accumulate, 1);
    SCOPED_TRACE(cat("step ", planter.turn.first_step));
    Recorded recorded;
    const Config c = planted_config();
    const std::string message = message_of(c, planter, recorded);
    expect_stopped_at(planter.turn.first_step, c, message);
    const std::string expected = cat("The first non-finite tensor is gradient of ",
                                     parameter_at(planter.element, false, false), ". ");
    EXPECT_NE(message.find(expected), std::string::npos) << message << "\n" << expected;
  }
}

// After a step.
struct PlantAfterStep : PlantInMemory, Recorded {
  int64_t step = 0;

  void on_step(const StepMetrics& metrics) override {
    Recorded::on_step(metrics);
    if (metrics.step == step) plant_one();
  }
};

TEST_P(PlantedNan, InWeightsOrMomentsIsNamedAndNotSaved) {
  const bool muon = GetParam().optimizer == OptimizerKind::muon;
  const bool bf16 = has_bf16_activations(GetParam().precision);
  const std::string weights = bf16 ? "parameters (bf16 copy)" : "parameters";
  std::vector<std::string> memory = {weights, "adam first moment", "adam second moment"};
  if (muon) memory.push_back("muon momentum");
  for (const std::string& name : memory) {
    for (const OnNonfinite policy : {OnNonfinite::stop, OnNonfinite::skip}) {
      for (const int64_t every : {2, 4}) {  // found by a checkpoint, by a loss
        if (policy == OnNonfinite::skip && every == 4) continue;
        PlantAfterStep planter;
        planter.name = name;
        planter.dtype = bf16 && name == weights ? DType::bf16 : DType::f32;
        planter.step = random_step() + 1;
        planter.random = &random_;
        SCOPED_TRACE(cat(name, " after step ", planter.step, ", checkpoint every ", every,
                         policy == OnNonfinite::skip ? ", skip" : ", stop"));
        Config c = planted_config();
        c.model.tied = true;  // else a row of the embedding may never be read
        c.train.on_nonfinite = policy;
        c.train.checkpoint_every = every;
        const std::string message = message_of(c, planter, planter);
        const bool placed = name == weights || !muon;  // as in the arena
        std::string expected = placed ? parameter_at(planter.element, true, true) : "";
        expected = cat(name == weights ? ": tensor '" : "", expected, "' holds ");
        EXPECT_NE(message.find(expected), std::string::npos) << message << "\n" << expected;
        EXPECT_LE(planter.steps.back().step, planter.step + 3);
      }
    }
  }
}

// The steps after a skipped one are those of a run that never took it: its batch and its rate are
// used up, the weights, the moments and their count of updates are not.
class SkippedNan : public PlantedNan {
 protected:
  Config skipping_config(int64_t checkpoint_every) {
    Config c = planted_config();
    c.train.on_nonfinite = OnNonfinite::skip;
    c.train.checkpoint_every = checkpoint_every;
    return c;
  }

  // A run that goes on behind step `step` from the state before it.
  Config run_without(int64_t step) {
    const Config from = whole();
    Config c = skipping_config(kSteps);
    fs::copy(from.run.out, c.run.out, fs::copy_options::recursive);
    const fs::path checkpoints = fs::path(c.run.out) / "checkpoints";
    fs::remove_all(checkpoints);
    {
      const auto context = make_context(c.compute, 1);
      const ContextScope scope(*context);
      ModelInstance instance(resolved_.model, c.compute, InitScheme::normal, true, 1);
      const std::unique_ptr<Optimizer> optimizer = make_optimizer(instance.arena, c);
      TrainState state =
          load_train_state(checkpoint_path(fs::path(from.run.out) / "checkpoints", step - 1),
                           instance.arena, resolved_.model, *optimizer);
      state.sampler.draw += state.sampler.draw / static_cast<uint64_t>(state.iteration);
      state.iteration += 1;
      state.skipped += 1;
      save_train_state(checkpoints, instance.arena, *optimizer, state);
    }
    Recorded rest;
    c.run.resume = c.run.out;
    train(c, rest);
    return c;
  }

  template <class Observer>
  void expect_skipped(Observer& observer) {
    const int64_t step = observer.turn.last_step = observer.turn.first_step;
    SCOPED_TRACE(cat("step ", step));
    const Config c = skipping_config(step);
    Recorded recorded;
    EXPECT_EQ(message_of(c, observer, recorded), "");
    ASSERT_EQ(recorded.warnings.size(), 1u);
    EXPECT_TRUE(recorded.warnings[0].starts_with(cat("step ", step, ": loss ")))
        << recorded.warnings[0];
    EXPECT_TRUE(recorded.warnings[0].ends_with("; the step was skipped (1 so far)"))
        << recorded.warnings[0];
    EXPECT_EQ(recorded.steps.back().skipped, 1);
    const fs::path checkpoints = fs::path(c.run.out) / "checkpoints";
    for (const int64_t at : {step, kSteps}) {
      const TrainState state = peek_train_state(checkpoint_path(checkpoints, at));
      EXPECT_EQ(state.iteration, at);
      EXPECT_EQ(state.step, at - 1);
      EXPECT_EQ(state.skipped, 1);
    }
    EXPECT_TRUE(files_of(c, step) == files_of(whole(), step - 1));
    EXPECT_TRUE(files_of(c, kSteps) == files_of(run_without(step), kSteps));
    EXPECT_FALSE(files_of(c, kSteps) == files_of(whole(), kSteps));
  }
};

TEST_P(SkippedNan, LeavesTheBitsOfARunThatNeverTookTheStep) {
  const int64_t parts = GetParam().accumulate;
  PlantInOutputs outputs;
  PlantInGradients gradients;
  Recorded recorded;
  Config c = planted_config();
  c.train.steps = 1;
  EXPECT_EQ(message_of(c, outputs, recorded), "");
  c.run.out += "_again";
  EXPECT_EQ(message_of(c, gradients, recorded), "");
  for (int64_t part = 0; part < parts; ++part) {
    SCOPED_TRACE(cat("micro-batch ", part));
    PlantInOutputs in_output;
    in_output.op = "linear";
    in_output.turn = random_turn(outputs.outputs.at("linear"), part);
    expect_skipped(in_output);
    PlantInGradients in_gradient;
    in_gradient.turn = random_turn(gradients.turn.seen, part, gradients.kUnread);
    expect_skipped(in_gradient);
  }
  if (parts == 1) return;
  PlantInSums in_sums;
  in_sums.name = "gradients";
  in_sums.random = &random_;
  in_sums.turn = random_turn(parts, 1);
  expect_skipped(in_sums);
}

const Mode kOne[] = {
    {"Fp32Fused", Precision::fp32, KernelKind::fused, AttentionKind::flash},
    {"Fp32Naive", Precision::fp32, KernelKind::naive, AttentionKind::naive},
    {"Bf16Fused", Precision::bf16, KernelKind::fused, AttentionKind::flash},
    {"Fp8Fused", Precision::fp8, KernelKind::fused, AttentionKind::flash},
    {"Fp32FusedByMuon", Precision::fp32, KernelKind::fused, AttentionKind::flash,
     OptimizerKind::muon},
};
const Mode kOfTwo[] = {
    {"Fp32FusedOfTwo", Precision::fp32, KernelKind::fused, AttentionKind::flash,
     OptimizerKind::adamw, 2},
    {"Fp32NaiveOfTwo", Precision::fp32, KernelKind::naive, AttentionKind::naive,
     kSanitized ? OptimizerKind::adamw : OptimizerKind::muon, 2},
    {"Bf16FusedOfTwoByMuon", Precision::bf16, KernelKind::fused, AttentionKind::flash,
     OptimizerKind::muon, 2},
};
const auto name_of = [](const auto& mode) { return mode.param.name; };
INSTANTIATE_TEST_SUITE_P(Modes, PlantedNan, testing::ValuesIn(kOne), name_of);
INSTANTIATE_TEST_SUITE_P(ModesOfTwo, PlantedNan, testing::ValuesIn(kOfTwo), name_of);
INSTANTIATE_TEST_SUITE_P(Modes, PlantedNanOfMicroBatches, testing::ValuesIn(kOfTwo), name_of);
INSTANTIATE_TEST_SUITE_P(Modes, SkippedNan, testing::ValuesIn(kOne), name_of);
INSTANTIATE_TEST_SUITE_P(ModesOfTwo, SkippedNan, testing::ValuesIn(kOfTwo), name_of);

}  // namespace
}  // namespace quern
