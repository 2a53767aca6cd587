// quern profile on the GPU: kernels by CUPTI, each with its op, also those of the replayed graph;
// CUDA events if CUPTI is off. Tests of CUPTI are skipped on machines without it.
#include "bench/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "profile/time/recorder.h"
#include "profile/time/step_split.h"
#include "run/make_context.h"
#include "support/training.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

constexpr int64_t kClockError = 20'000;  // ns: GPU times are interpolated to the host's clock

class ProfileGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }

  static Config config() {
    Config config;
    static_cast<ModelConfig&>(config.model) = testing_support::tiny_model();
    config.compute.precision = Precision::bf16;
    config.compute.device = DeviceChoice::cuda;
    config.train.batch = 2;
    return config;
  }

  static Profile profile(const Config& config, const ProfileOptions& options) {
    const auto context = make_context(config.compute, 1);
    const ContextScope scope(*context);
    return profile_steps(config, options);
  }

  static ProfileOptions quick() {
    ProfileOptions options;
    options.warmup = 2;
    options.steps = 3;
    return options;
  }
};

bool has_kernels(const Profile& profile) {
  return profile.gpu_times == GpuTimes::cupti;
}

void expect_inside_steps(const Profile& p) {
  for (const DeviceEvent& event : p.device_events) {
    EXPECT_GT(event.end, event.begin) << p.names[event.name];
    const bool inside = std::any_of(p.steps.begin(), p.steps.end(), [&](const TimeSpan& step) {
      return event.begin >= step.begin - kClockError && event.end <= step.end + kClockError;
    });
    EXPECT_TRUE(inside) << p.names[event.name];
  }
}

// Kernel names by place: phase, module, op.
std::multiset<std::string> kernels_by_place(const Profile& p) {
  std::multiset<std::string> kernels;
  for (const DeviceEvent& event : p.device_events) {
    if (event.kind != DeviceEventKind::kernel || event.range < 0) continue;
    const RangeEvent& range = p.ranges[static_cast<size_t>(event.range)];
    kernels.insert(p.names[range.phase] + " " + p.names[range.module] + " " + p.names[range.name] +
                   ": " + p.names[event.name]);
  }
  return kernels;
}

TEST_F(ProfileGpu, EveryKernelHasItsCallAndItsOp) {
  const Profile p = profile(config(), quick());
  if (!has_kernels(p)) GTEST_SKIP() << p.note;
  EXPECT_EQ(p.device, cuda::device_info(0).name);
  EXPECT_NE(p.note.find("kernel by kernel"), std::string::npos);
  ASSERT_EQ(p.steps.size(), 3u);
  ASSERT_GT(p.device_events.size(), 3u * 30u);
  expect_inside_steps(p);
  std::map<uint64_t, const CudaCall*> calls;
  for (const CudaCall& call : p.calls) calls[call.correlation] = &call;
  std::set<std::string> phases;
  size_t kernels = 0, outside = 0;
  for (const DeviceEvent& event : p.device_events) {
    ASSERT_TRUE(calls.contains(event.correlation)) << p.names[event.name];
    const CudaCall& call = *calls[event.correlation];
    EXPECT_EQ(call.range, event.range);
    EXPECT_GE(event.begin, call.begin - kClockError) << p.names[event.name];
    if (event.kind != DeviceEventKind::kernel) continue;
    ++kernels;
    if (event.range < 0) {
      ++outside;  // zero_grad, the loss's copy: between phases
      continue;
    }
    const RangeEvent& range = p.ranges[static_cast<size_t>(event.range)];
    EXPECT_LE(range.begin, call.begin);
    EXPECT_GE(range.end, call.end);
    phases.insert(p.names[range.phase]);
  }
  EXPECT_EQ(phases, (std::set<std::string>{"forward", "backward", "optimizer"}));
  EXPECT_LE(outside, 3u * 3u) << "of " << kernels;
}

// Every attention kernel was launched by an attention op.
TEST_F(ProfileGpu, KernelsAreOfTheOpThatLaunchedThem) {
  const Profile p = profile(config(), quick());
  if (!has_kernels(p)) GTEST_SKIP() << p.note;
  size_t attention = 0;
  for (const std::string& kernel : kernels_by_place(p)) {
    const size_t colon = kernel.find(": ");
    if (kernel.find("attention", colon) == std::string::npos) continue;
    ++attention;
    EXPECT_LT(kernel.find("attention"), colon) << kernel;
    EXPECT_LT(kernel.find("self_attn"), colon) << kernel;
  }
  EXPECT_GE(attention, 3u * 2u * 2u);  // steps, layers, directions
}

// Work and gaps make up the whole step: nothing overlaps or is counted twice.
TEST_F(ProfileGpu, KernelsAndGapsAddUpToTheSteps) {
  const Profile p = profile(config(), quick());
  if (!has_kernels(p)) GTEST_SKIP() << p.note;
  int64_t busy = 0, covered = 0, at = 0;
  for (const DeviceEvent& event : p.device_events) {
    busy += event.end - event.begin;
    covered += std::max(event.end, at) - std::max(event.begin, at);
    at = std::max(at, event.end);
  }
  EXPECT_GT(busy, 0);
  EXPECT_NEAR(static_cast<double>(busy), static_cast<double>(covered),
              0.03 * static_cast<double>(covered));  // one stream: kernels hardly overlap
  for (const bool graph : {false, true}) {
    ProfileOptions options = quick();
    options.graph = graph;
    const Profile one = profile(config(), options);
    double kernels = 0.0, steps = 0.0;
    for (const DeviceEvent& event : one.device_events) {
      kernels += static_cast<double>(event.end - event.begin) / 1e6;
    }
    for (const TimeSpan& step : one.steps) {
      steps += static_cast<double>(step.end - step.begin) / 1e6;
    }
    const StepSplit split = split_step(one);
    const auto count = static_cast<double>(one.steps.size());
    EXPECT_NEAR(kernels + split.idle() * count, steps, 0.03 * steps) << "graph " << graph;
    EXPECT_GT(split.idle(), 0.0);
  }
}

// The same work, replayed, has the same kernels in the same places.
TEST_F(ProfileGpu, AGraphsKernelsAreTheUncapturedOnes) {
  const Profile launched = profile(config(), quick());
  if (!has_kernels(launched)) GTEST_SKIP() << launched.note;
  ProfileOptions options = quick();
  options.graph = true;
  const Profile replayed = profile(config(), options);
  EXPECT_TRUE(replayed.captured);
  EXPECT_EQ(replayed.note, "");  // nothing is lost or of unknown origin
  expect_inside_steps(replayed);
  size_t unknown = 0;
  for (const DeviceEvent& event : replayed.device_events) {
    if (event.kind == DeviceEventKind::kernel && event.range < 0) ++unknown;
  }
  const auto expected = kernels_by_place(launched), found = kernels_by_place(replayed);
  EXPECT_EQ(found, expected);
  EXPECT_LE(unknown, 3u * 3u);
  const auto launches =
      std::count_if(replayed.calls.begin(), replayed.calls.end(), [&](const CudaCall& call) {
        return replayed.names[call.name].find("GraphLaunch") != std::string::npos;
      });
  EXPECT_EQ(launches, 3);
}

TEST_F(ProfileGpu, WithoutCuptiEventsTimeTheOps) {
  ProfileOptions options = quick();
  options.cupti = "/nowhere/libcupti.so";
  const Profile p = profile(config(), options);
  EXPECT_EQ(p.gpu_times, GpuTimes::events);
  EXPECT_NE(p.note.find("CUPTI is missing (/nowhere/libcupti.so was not found)"),
            std::string::npos);
  EXPECT_TRUE(p.calls.empty());
  expect_inside_steps(p);
  std::set<std::string> names;
  int64_t at = 0;
  for (const DeviceEvent& event : p.device_events) {
    EXPECT_EQ(event.kind, DeviceEventKind::op);
    EXPECT_GE(event.begin, at);  // one after another
    at = event.end;
    names.insert(p.names[event.name]);
    const RangeEvent& range = p.ranges[static_cast<size_t>(event.range)];
    EXPECT_EQ(range.name, event.name);
    EXPECT_TRUE(range.parent < 0 ||
                p.ranges[static_cast<size_t>(range.parent)].kind != RangeKind::op);
  }
  for (const char* name : {"linear", "rope_attention", "add_rms_norm", "optimizer"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST_F(ProfileGpu, SwitchedOffSaysSo) {
  ProfileOptions options = quick();
  options.cupti = "off";
  options.graph = true;
  const Profile p = profile(config(), options);
  EXPECT_NE(p.note.find("switched off"), std::string::npos);
  ASSERT_EQ(p.device_events.size(), 3u);  // the graph is one op
  EXPECT_EQ(p.names[p.device_events[0].name], "step");
  expect_inside_steps(p);
}

// One CUPTI recorder a process: the second has events, and the first still has its kernels.
TEST_F(ProfileGpu, ASecondRecorderDoesWithoutCupti) {
  const Config c = config();
  const auto context = make_context(c.compute, 1);
  const ContextScope scope(*context);
  Profile first, second;
  Recorder outer(first);
  if (!has_kernels(first)) GTEST_SKIP() << first.note;
  {
    Recorder inner(second);
    EXPECT_EQ(second.gpu_times, GpuTimes::events);
    EXPECT_NE(second.note.find("recording already"), std::string::npos) << second.note;
    inner.finish();
  }
  const KernelWork part = make_part("softmax", c);
  outer.begin_step();
  part.run();
  outer.end_step();
  outer.finish();
  EXPECT_FALSE(first.device_events.empty());
}

TEST_F(ProfileGpu, PartsRun) {
  for (const char* target : {"softmax", "attention", "gelu", "matmul", "mlp", "adamw"}) {
    ProfileOptions options = quick();
    options.target = target;
    const Profile p = profile(config(), options);
    EXPECT_FALSE(p.device_events.empty()) << target;
    expect_inside_steps(p);
  }
}

}  // namespace
}  // namespace quern
