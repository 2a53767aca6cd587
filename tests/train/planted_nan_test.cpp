// A NaN planted in each class of tensors at a random step: training ends, names where it is, and
// saves nothing that is not finite.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "run/make_context.h"
#include "run/train_state.h"
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
};

class PlantedNan : public TrainerTest, public testing::WithParamInterface<Mode> {
 protected:
  Config planted_config() {
    Config c = config(cat("run", runs_++));
    c.compute.precision = GetParam().precision;
    c.compute.kernels = GetParam().kernels;
    c.compute.attention = GetParam().attention;
    c.train.steps = 12;
    c.train.checkpoint_every = 2;
    c.train.keep = 20;
    return c;
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
      for (const SafetensorsFile* file : {&checkpoint.weights, &checkpoint.moments}) {
        for (const auto& entry : file->entries()) {
          std::vector<float> values(static_cast<size_t>(entry.shape.numel()));
          std::memcpy(values.data(), entry.data.data(), entry.data.size());
          EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
              << "step " << step << ", " << entry.name;
        }
      }
    }
    return message;
  }

  std::mt19937 random_{20261124};
  int runs_ = 0;
};

// Plants a NaN in every output of an op in the forward, from its `first` one on.
struct PlantInOutputs : OutputObserver, RangeObserver {
  std::string op;
  int64_t first = 0;
  std::map<std::string, int64_t> outputs;  // of each op so far
  std::vector<std::string> ranges;         // open ones

  void on_begin(const Range& range) override { ranges.emplace_back(range.name); }
  void on_end() override { ranges.pop_back(); }
  void on_output(const char* name, const Tensor& output) override {
    if (std::ranges::find(ranges, "forward") == ranges.end()) return;
    if (!is_floating(output.dtype()) || output.numel() == 0) return;
    if (outputs[name]++ >= first && op == name) {
      plant(const_cast<void*>(output.raw_data()), output.dtype(), 0);
    }
  }
  std::shared_ptr<void> attach(Context&) {
    struct Both {
      Observe<OutputObserver> outputs;
      ObserveRanges ranges;
    };
    return std::shared_ptr<Both>(new Both{Observe<OutputObserver>(*this), ObserveRanges(*this)});
  }
};

TEST_P(PlantedNan, InEachOpsOutputIsNamedByOpAndModule) {
  PlantInOutputs none;
  Recorded recorded;
  Config c = planted_config();
  c.train.steps = 2;
  EXPECT_EQ(message_of(c, none, recorded), "");
  ASSERT_GE(none.outputs.size(), 6u);
  none.outputs.erase("causal_mask");  // its -inf are no fault; softmax is named for it
  for (const auto& [op, count] : none.outputs) {
    SCOPED_TRACE(op);
    PlantInOutputs planter;
    planter.op = op;
    planter.first = count / 2 * (3 + static_cast<int64_t>(random_() % 6));  // count: of two steps
    const std::string message = message_of(planted_config(), planter, recorded);
    // Naive cross-entropy multiplies to get its indices; gather refuses those of a NaN.
    if (op == "mul" && message.starts_with("gather: index 0 is -")) continue;
    EXPECT_NE(message.find("The first non-finite tensor is forward"), std::string::npos) << message;
    EXPECT_NE(message.find(cat("output of ", op)), std::string::npos) << message;
  }
}

// Plants a NaN in the gradient of every output from the `first` one on.
struct PlantInGradients : GradientObserver {
  int64_t first = 0, seen = 0;

  void on_gradient(uint64_t, int, int, const Tensor& grad) override {
    if (seen++ >= first) plant(const_cast<void*>(grad.raw_data()), grad.dtype(), 0);
  }
  std::shared_ptr<void> attach(Context&) {
    return std::make_shared<Observe<GradientObserver>>(*this);
  }
};

TEST_P(PlantedNan, InAGradientIsNamedByParameter) {
  PlantInGradients none;
  none.first = INT64_MAX;
  Recorded recorded;
  Config c = planted_config();
  c.train.steps = 1;
  EXPECT_EQ(message_of(c, none, recorded), "");
  for (int i = 0; i < 5; ++i) {
    PlantInGradients planter;
    planter.first = none.seen * 3 + static_cast<int64_t>(random_() % (6u * none.seen));
    const std::string message = message_of(planted_config(), planter, recorded);
    EXPECT_NE(message.find("The first non-finite tensor is gradient of "), std::string::npos)
        << message;
  }
}

// Plants a NaN in one element of a named allocation, after a step.
struct PlantInMemory : AllocationObserver, Recorded {
  std::string name;
  DType dtype = DType::f32;
  int64_t step = 0;
  void* data = nullptr;
  int64_t elements = 0;
  std::mt19937* random = nullptr;

  void on_allocate(const Allocation& a) override {
    if (a.name != name) return;
    data = a.data;
    elements = a.bytes / size_of(dtype);
  }
  void on_release(const Allocation& a) override {
    if (a.data == data) data = nullptr;
  }
  void on_step(const StepMetrics& metrics) override {
    Recorded::on_step(metrics);
    if (metrics.step != step) return;
    ASSERT_NE(data, nullptr) << name;
    int64_t element = 0;
    do {
      element = static_cast<int64_t>((*random)() % static_cast<uint64_t>(elements));
    } while (is_zero(element));  // padding, which is no part of any tensor
    plant(data, dtype, element);
  }
  bool is_zero(int64_t element) const {
    const int64_t bytes = size_of(dtype);
    const char* first = static_cast<const char*>(data) + element * bytes;
    return std::all_of(first, first + bytes, [](char c) { return c == 0; });
  }
  std::shared_ptr<void> attach(Context& context) {
    Allocator* const allocator = context.allocator().get();
    allocator->set_observer(this);
    return {this, [allocator](void*) { allocator->set_observer(nullptr); }};
  }
};

TEST_P(PlantedNan, InWeightsCopiesOrMomentsIsNamedAndNotSaved) {
  struct Case {
    std::string name;  // of the allocation
    DType dtype;
    std::string expected;  // in the message
  };
  std::vector<Case> cases = {{"parameters", DType::f32, ": tensor '"},
                             {"adam first moment", DType::f32, ": tensor '"},
                             {"adam second moment", DType::f32, ": tensor '"}};
  if (GetParam().precision == Precision::bf16) {
    cases.push_back({"parameters (bf16 copy)", DType::bf16, "output of "});
  }
  for (const Case& one : cases) {
    for (int i = 0; i < 3; ++i) {
      PlantInMemory planter;
      planter.name = one.name;
      planter.dtype = one.dtype;
      planter.step = static_cast<int64_t>(3 + random_() % 6);
      planter.random = &random_;
      SCOPED_TRACE(cat(one.name, " after step ", planter.step));
      Config c = planted_config();
      c.model.tied = true;  // else a row of the embedding may never be read
      const std::string message = message_of(c, planter, planter);
      EXPECT_NE(message.find(one.expected), std::string::npos) << message;
      EXPECT_LE(planter.steps.back().step, planter.step + 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, PlantedNan,
    testing::Values(Mode{"Fp32Fused", Precision::fp32, KernelKind::fused, AttentionKind::flash},
                    Mode{"Fp32Naive", Precision::fp32, KernelKind::naive, AttentionKind::naive},
                    Mode{"Bf16Fused", Precision::bf16, KernelKind::fused, AttentionKind::flash}),
    [](const auto& mode) { return mode.param.name; });

}  // namespace
}  // namespace quern
