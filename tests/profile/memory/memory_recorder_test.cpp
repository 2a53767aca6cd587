// The recorder's data on allocations, against the allocator's own statistics.
#include "profile/memory/memory_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "optim/adamw.h"
#include "run/model_instance.h"
#include "support/training.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr int64_t kMiB = int64_t{1} << 20;

struct MemoryRecorderTest : testing::Test {
  Context context{kCpu};
  ContextScope scope{context};
  Allocator& allocator = *context.allocator(kCpu);
};

const TracedAllocation* find(const MemoryTrace& trace, const std::string& name) {
  for (const TracedAllocation& a : trace.allocations) {
    if (trace.names[a.name] == name) return &a;
  }
  return nullptr;
}

int64_t sum(const MemoryByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t live_bytes(const MemoryTrace& trace) {
  return sum(by_category(trace, live_at(trace, trace.end)));
}

// A model of two blocks, trained for a step.
struct Step {
  explicit Step(const ModelOptions& options = {})
      : instance(tiny_model(), options, InitScheme::normal, true, 1),
        optimizer(instance.arena, {}),
        step(instance, optimizer, false) {}
  void run() {
    const Tensor tokens = random_integers({2, 48}, 300);
    step.run(tokens, tokens, {});
  }
  ModelInstance instance;
  AdamW optimizer;
  TrainingStep step;
};

TEST_F(MemoryRecorderTest, KnowsWhatWasAliveBefore) {
  const Tensor before =
      Tensor::empty({1000}, DType::f32, {"parameters", MemoryCategory::parameters});
  const MemoryRecorder recorder;
  const MemoryTrace trace = recorder.trace();
  ASSERT_EQ(trace.allocations.size(), 1u);
  const TracedAllocation& a = trace.allocations[0];
  EXPECT_EQ(a.address, reinterpret_cast<uintptr_t>(before.raw_data()));
  EXPECT_EQ(a.bytes, 4000);
  EXPECT_EQ(a.allocated, 0);
  EXPECT_EQ(a.released, -1);
  EXPECT_EQ(a.category, MemoryCategory::parameters);
  ASSERT_EQ(trace.segments.size(), 1u);
  EXPECT_EQ(trace.segments[0].bytes, allocator.stats().reserved);
  EXPECT_EQ(trace.device, "cpu");
}

TEST_F(MemoryRecorderTest, AnAllocationHasItsPlaceAndItsTimes) {
  MemoryRecorder recorder;
  {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope layer(RangeKind::module, "layers.3");
    const RangeScope op("rms_norm");
    const Tensor x = Tensor::empty({8}, DType::f32, "rms_norm rstd");
  }
  const MemoryTrace trace = recorder.trace();
  const TracedAllocation* a = find(trace, "rms_norm rstd");
  ASSERT_TRUE(a);
  EXPECT_EQ(trace.names[a->place.phase], "forward");
  EXPECT_EQ(trace.names[a->place.module], "layers.3");
  EXPECT_EQ(trace.names[a->place.op], "rms_norm");
  EXPECT_EQ(a->category, MemoryCategory::other) << "gone before the forward was over";
  ASSERT_EQ(trace.phases.size(), 1u);
  EXPECT_EQ(trace.names[trace.phases[0].name], "forward");
  EXPECT_LT(trace.phases[0].begin, a->allocated);
  EXPECT_LT(a->allocated, a->released);
  EXPECT_LT(a->released, trace.phases[0].end);
  EXPECT_LE(trace.phases[0].end, trace.end);
}

TEST_F(MemoryRecorderTest, WhatTheForwardLeavesIsAnActivation) {
  MemoryRecorder recorder;
  const Tensor before = zeros({16});
  Tensor kept, scratch;
  {
    const RangeScope phase(RangeKind::phase, "forward");
    kept = Tensor::empty({8}, DType::f32, "kept");
    scratch = Tensor::empty({8}, DType::u8, {"scratch", MemoryCategory::workspace});
    EXPECT_EQ(find(recorder.trace(), "kept")->category, MemoryCategory::activations)
        << "so far it is kept";
  }
  const RangeScope phase(RangeKind::phase, "backward");
  const Tensor gradient = Tensor::empty({8}, DType::f32, "late");
  const MemoryTrace trace = recorder.trace();
  EXPECT_EQ(find(trace, "kept")->category, MemoryCategory::activations);
  EXPECT_EQ(find(trace, "scratch")->category, MemoryCategory::workspace);
  EXPECT_EQ(find(trace, "full")->category, MemoryCategory::other);
  EXPECT_EQ(find(trace, "late")->category, MemoryCategory::other);
}

TEST_F(MemoryRecorderTest, TheCategoryIsTheTagsAndNotTheNames) {
  MemoryRecorder recorder;
  const Tensor named = Tensor::empty({8}, DType::u8, "gradients");
  const Tensor tagged = Tensor::empty({8}, DType::u8, {"moments", MemoryCategory::optimizer});
  const MemoryTrace trace = recorder.trace();
  EXPECT_EQ(find(trace, "gradients")->category, MemoryCategory::other);
  EXPECT_EQ(find(trace, "moments")->category, MemoryCategory::optimizer);
}

// Every named buffer of a training run has the category that its name promises.
TEST_F(MemoryRecorderTest, ATrainingStepAddsUpToTheByte) {
  for (const bool fused : {true, false}) {
    ModelOptions options;
    options.precision = Precision::bf16;
    if (!fused) options.kernels = KernelKind::naive, options.attention = AttentionKind::naive;
    allocator.reset_peak();
    MemoryRecorder recorder;
    Step step(options);
    step.run();
    step.run();
    const MemoryTrace trace = recorder.trace();
    const MemoryPeak peak = peak_of(trace);
    EXPECT_EQ(peak.bytes, allocator.stats().peak_allocated);
    EXPECT_EQ(sum(peak.by_category), peak.bytes);
    EXPECT_EQ(live_bytes(trace), allocator.stats().allocated);
    EXPECT_EQ(trace.stats.allocated, allocator.stats().allocated);
    EXPECT_EQ(trace.dropped, 0);

    const ParameterArena& arena = step.instance.arena;
    const auto bytes = [&](MemoryCategory c) { return peak.by_category[static_cast<size_t>(c)]; };
    const int64_t vectors = arena.vectors().bytes(),
                  runs = bytes(MemoryCategory::parameters) - arena.size() * 4 - vectors;
    EXPECT_GT(vectors, 0);
    EXPECT_GE(runs, 0);
    EXPECT_LT(runs, 1024);  // where the vectors lie
    EXPECT_EQ(bytes(MemoryCategory::gradients), arena.trainable() * 4);
    EXPECT_GE(bytes(MemoryCategory::optimizer), arena.trainable() * 8);
    EXPECT_LT(bytes(MemoryCategory::optimizer), arena.trainable() * 8 + 1024);
    EXPECT_GT(bytes(MemoryCategory::activations), 0);
    EXPECT_EQ(trace.phases.size(), 6u);
  }
}

// A segment contains its allocations at all times, and no two overlap.
TEST_F(MemoryRecorderTest, AllocationsLieInSegmentsThatAreHeld) {
  MemoryRecorder recorder;
  Step step;
  step.run();
  allocator.release(allocator.allocate(40 * kMiB, "large"));
  allocator.release_cached();
  const MemoryTrace trace = recorder.trace();
  int64_t held = 0, given_back = 0;
  for (const TracedSegment& s : trace.segments) (s.unreserved < 0 ? held : given_back) += s.bytes;
  EXPECT_EQ(held, allocator.stats().reserved);
  EXPECT_GE(given_back, 40 * kMiB);
  for (const TracedAllocation& a : trace.allocations) {
    bool inside = false;
    for (const TracedSegment& s : trace.segments) {
      const bool there = s.reserved <= a.allocated && (s.unreserved < 0 || a.released > 0) &&
                         (s.unreserved < 0 || a.released < s.unreserved);
      const auto bytes = static_cast<uint64_t>(s.bytes), size = static_cast<uint64_t>(a.bytes);
      inside |= there && a.address >= s.address && a.address + size <= s.address + bytes;
    }
    EXPECT_TRUE(inside) << trace.names[a.name];
  }
}

TEST_F(MemoryRecorderTest, ABackwardIsPlacedWhereItsForwardWas) {
  MemoryRecorder recorder;
  Step step;
  step.run();
  const MemoryTrace trace = recorder.trace();
  bool found = false;
  for (const TracedAllocation& a : trace.allocations) {
    if (!a.place.backward || trace.names[a.place.op] != "swiglu_linear") continue;
    EXPECT_EQ(trace.names[a.place.phase], "backward");
    EXPECT_TRUE(trace.names[a.place.module].ends_with(".mlp.down_proj"))
        << trace.names[a.place.module];
    found = true;
  }
  EXPECT_TRUE(found);
}

// An op's inputs' shapes become known after the allocation of its output.
TEST_F(MemoryRecorderTest, AnOutputKnowsTheShapesItCameFrom) {
  MemoryRecorder recorder;
  const Tensor x = zeros({3, 5}), z = zeros({7});
  const Variable y = silu(x);
  const Variable w = silu(z);
  const MemoryTrace trace = recorder.trace();
  std::vector<std::string> shapes;
  for (const TracedAllocation& a : trace.allocations) {
    if (trace.names[a.place.op] == "silu") shapes.push_back(trace.names[a.place.shapes]);
  }
  EXPECT_EQ(shapes, (std::vector<std::string>{"(3, 5)", "(7)"}));
}

TEST_F(MemoryRecorderTest, ThePeakIsThatOfTheRecording) {
  allocator.release(allocator.allocate(kMiB, "before"));
  MemoryRecorder recorder;
  allocator.release(allocator.allocate(2000, "within"));
  allocator.reset_peak();
  EXPECT_EQ(recorder.trace().stats.peak_allocated, 2000);
}

TEST_F(MemoryRecorderTest, HistoryIsBoundedAndWhatLivesIsKept) {
  MemoryRecorder recorder(10);
  const Tensor kept = Tensor::empty({4}, DType::f32, "kept");
  for (int i = 0; i < 100; ++i) {
    const RangeScope phase(RangeKind::phase, "forward");
    Tensor::empty({i + 1}, DType::u8, "gone");
  }
  const MemoryTrace trace = recorder.trace();
  EXPECT_EQ(trace.allocations.size(), 11u);
  EXPECT_EQ(trace.dropped, 90);
  EXPECT_LE(trace.phases.size(), 10u);
  EXPECT_TRUE(find(trace, "kept"));
  EXPECT_EQ(find(trace, "gone")->bytes, 91) << "the newest are kept";
  EXPECT_GT(trace.complete_from, 0);
  EXPECT_LT(trace.complete_from, find(trace, "gone")->allocated);
  EXPECT_EQ(peak_of(trace).bytes, 16 + 100);
}

TEST_F(MemoryRecorderTest, AReleaseMayComeFromAnotherThread) {
  MemoryRecorder recorder;
  std::vector<Tensor> tensors;
  for (int i = 0; i < 2000; ++i) tensors.push_back(Tensor::empty({16}, DType::f32, "shared"));
  std::thread other([&] { tensors.clear(); });
  for (int i = 0; i < 2000; ++i) {
    const RangeScope op("busy");
    Tensor::empty({16}, DType::f32, "own");
  }
  other.join();
  std::thread([&] { Tensor::empty({16}, DType::f32, kCpu, "elsewhere"); }).join();
  const MemoryTrace trace = recorder.trace();
  EXPECT_EQ(trace.allocations.size(), 4000u) << "another thread has another Context";
  EXPECT_EQ(live_bytes(trace), 0);
  EXPECT_EQ(peak_of(trace).bytes, allocator.stats().peak_allocated);
}

struct Counter : AllocationObserver {
  int allocated = 0, released = 0, refused = 0;
  void on_allocate(const Allocation&) override { ++allocated; }
  void on_release(const Allocation&) override { ++released; }
  void on_out_of_memory(int64_t, const char*) override { ++refused; }
};

TEST_F(MemoryRecorderTest, AnotherObserverGoesOnBeingTold) {
  Counter counter;
  allocator.set_observer(&counter);
  {
    MemoryRecorder recorder;
    zeros({4});
    EXPECT_EQ(counter.allocated, 1);
    EXPECT_EQ(counter.released, 1);
  }
  zeros({4});
  EXPECT_EQ(counter.allocated, 2) << "and has its place again";
  EXPECT_EQ(allocator.set_observer(nullptr), &counter);
}

TEST_F(MemoryRecorderTest, AFailureIsSeenBeforeItIsUnwound) {
  MemoryRecorder recorder;
  allocator.set_limit(16 * kMiB);
  EXPECT_FALSE(recorder.take_failure());
  const auto too_much = [&] {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope op("softmax");
    const Tensor held = Tensor::empty({kMiB}, DType::f32, "scores");
    const Tensor more = Tensor::empty({8 * kMiB}, DType::f32, "softmax");
  };
  EXPECT_THROW(too_much(), OutOfMemory);
  EXPECT_EQ(live_bytes(recorder.trace()), 0) << "unwound";
  const std::optional<MemoryTrace> failed = recorder.take_failure();
  ASSERT_TRUE(failed && failed->failure);
  EXPECT_EQ(failed->failure->bytes, 32 * kMiB);
  EXPECT_EQ(failed->names[failed->failure->name], "softmax");
  EXPECT_EQ(failed->names[failed->failure->place.op], "softmax");
  EXPECT_EQ(live_bytes(*failed), 4 * kMiB);
  EXPECT_EQ(failed->stats.allocated, 4 * kMiB);
  EXPECT_EQ(find(*failed, "scores")->category, MemoryCategory::activations);
  EXPECT_FALSE(recorder.take_failure()) << "it is handed out once";
}

}  // namespace
}  // namespace quern
