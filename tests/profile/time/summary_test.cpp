#include "profile/time/summary.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "profile/time/made_profile.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr double kExact = 1e-9;  // sums of a few round numbers

ProfileRow row_of(const std::vector<ProfileRow>& rows, const std::string& name,
                  const std::string& shapes = "") {
  for (const ProfileRow& row : rows) {
    if (row.name == name && row.shapes == shapes) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

void expect_row(const ProfileRow& row, double calls, double cpu_us, double cpu_self_us,
                double gpu_us, double gpu_self_us) {
  EXPECT_NEAR(row.calls, calls, kExact) << row.name;
  EXPECT_NEAR(row.cpu_total * 1e3, cpu_us, kExact) << row.name;
  EXPECT_NEAR(row.cpu_self * 1e3, cpu_self_us, kExact) << row.name;
  EXPECT_NEAR(row.gpu_total * 1e3, gpu_us, kExact) << row.name;
  EXPECT_NEAR(row.gpu_self * 1e3, gpu_self_us, kExact) << row.name;
}

double gpu_sum(const std::vector<ProfileRow>& rows) {
  double sum = 0.0;
  for (const ProfileRow& row : rows) sum += row.gpu_self * 1e3;
  return sum;
}

TEST(ProfileRows, OpsHaveTheirChildrenInTheirTotals) {
  const std::vector<ProfileRow> rows = rows_by(two_steps(), GroupBy::op);
  EXPECT_EQ(rows.size(), 6u);
  expect_row(row_of(rows, "linear"), 1, 100, 100, 200, 200);
  expect_row(row_of(rows, "rope_attention"), 1, 70, 70, 100, 100);
  expect_row(row_of(rows, "linear backward"), 1, 90, 50, 250, 200);
  expect_row(row_of(rows, "cast backward"), 1, 40, 40, 50, 50);
  expect_row(row_of(rows, "optimizer"), 1, 100, 100, 100, 100);  // a phase without ops
  // forward 20, its module 210, backward 210; the copy without a range.
  expect_row(row_of(rows, kOutside), 0, 440, 440, 20, 20);
  EXPECT_NEAR(gpu_sum(rows), 670.0, kExact);
}

TEST(ProfileRows, AnOpWithinItselfCountsOnce) {
  ProfileMaker made;
  const int32_t outer = made.range(RangeKind::op, "sum", 0, 100, -1, "");
  const int32_t middle = made.range(RangeKind::op, "cast", 10, 90, outer, "");
  made.range(RangeKind::op, "sum", 20, 50, middle, "");
  const std::vector<ProfileRow> rows = rows_by(made.profile, GroupBy::op);
  expect_row(row_of(rows, "sum"), 2, 100, 50, 0, 0);
  expect_row(row_of(rows, "cast"), 1, 80, 50, 0, 0);
}

TEST(ProfileRows, PhasesAreWithoutWhatLiesInThem) {
  const std::vector<ProfileRow> rows = rows_by(two_steps(), GroupBy::phase);
  expect_row(row_of(rows, "forward"), 1, 400, 20, 300, 0);
  expect_row(row_of(rows, "backward"), 1, 300, 210, 250, 0);
  expect_row(row_of(rows, "optimizer"), 1, 100, 100, 100, 100);
  expect_row(row_of(rows, kOutside), 0, 0, 0, 20, 20);
}

// The backward's ops are in no module's range: they have their forwards' paths.
TEST(ProfileRows, ModulesHaveTheirBackwardAndTheirParts) {
  const std::vector<ProfileRow> rows = rows_by(two_steps(), GroupBy::module);
  expect_row(row_of(rows, kLayer), 1, 470, 470, 550, 550);
  expect_row(row_of(rows, "model.layers"), 0, 470, 0, 550, 0);
  expect_row(row_of(rows, "model"), 0, 470, 0, 550, 0);
  expect_row(row_of(rows, kOutside), 0, 330, 330, 120, 120);
}

TEST(ProfileRows, KernelsHaveWhatTheirLaunchesCost) {
  const std::vector<ProfileRow> rows = rows_by(two_steps(), GroupBy::kernel);
  EXPECT_EQ(rows.size(), 5u);
  expect_row(row_of(rows, kGemm), 2, 20, 20, 400, 400);
  expect_row(row_of(rows, kAdamW), 1, 10, 10, 100, 100);
  expect_row(row_of(rows, "copy device to host"), 1, 0, 0, 20, 20);
  EXPECT_EQ(row_of(rows, "copy device to host").kind, WorkKind::copy);
  EXPECT_EQ(row_of(rows, kGemm).kind, WorkKind::gemm);
}

// The GPU's clock is off by some microseconds: a kernel may seem to begin before its step.
TEST(ProfileRows, AKernelIsInItsCallsStep) {
  ProfileMaker made;
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::cupti;
  const int32_t warmup = made.range(RangeKind::op, "add", 0, 10, -1, "");
  made.kernel("add_kernel", 105, 115, warmup, made.call("cudaLaunchKernel", 1, 2, warmup));
  made.now = 100;
  made.step(0, 100);
  const int32_t op = made.range(RangeKind::op, "add", 0, 50, -1, "");
  made.kernel("add_kernel", -3, 27, op, made.call("cudaLaunchKernel", 2, 5, op));
  made.kernel("mul_kernel", -3, 2, -1, 0);     // without a call: near enough
  made.kernel("mul_kernel", 205, 215, -1, 0);  // too far
  expect_row(row_of(rows_by(made.profile, GroupBy::op), "add"), 1, 50, 50, 30, 30);
  expect_row(row_of(rows_by(made.profile, GroupBy::kernel), "add_kernel"), 1, 3, 3, 30, 30);
  expect_row(row_of(rows_by(made.profile, GroupBy::kernel), "mul_kernel"), 1, 0, 0, 5, 5);
}

TEST(ProfileRows, ShapesSplitOps) {
  ProfileMaker made;
  made.range(RangeKind::op, "linear", 0, 10, -1, "", "", "(1, 2)");
  made.range(RangeKind::op, "linear", 10, 30, -1, "", "", "(3, 4)");
  made.range(RangeKind::op, "linear", 30, 70, -1, "", "", "(1, 2)");
  const std::vector<ProfileRow> rows = rows_by(made.profile, GroupBy::shape);
  EXPECT_EQ(rows.size(), 2u);
  expect_row(row_of(rows, "linear", "(1, 2)"), 2, 50, 50, 0, 0);
  expect_row(row_of(rows, "linear", "(3, 4)"), 1, 20, 20, 0, 0);
}

// The graph's ranges were open once, during its capture; its kernels run in every step.
TEST(ProfileRows, ACapturedGraphsKernelsAreTheirOps) {
  const std::vector<ProfileRow> rows = rows_by(captured_steps(), GroupBy::op);
  EXPECT_EQ(rows.size(), 2u);
  expect_row(row_of(rows, "linear"), 1, 0, 0, 40, 40);
  expect_row(row_of(rows, "add"), 1, 0, 0, 30, 30);
  expect_row(row_of(rows_by(captured_steps(), GroupBy::phase), "forward"), 1, 0, 0, 70, 0);
  expect_row(row_of(rows_by(captured_steps(), GroupBy::kernel), kGemm), 1, 5, 5, 40, 40);
}

TEST(ProfileRows, EventsTimeOpsWithTheirChildren) {
  const std::vector<ProfileRow> rows = rows_by(event_times(), GroupBy::op);
  expect_row(row_of(rows, "linear"), 1, 30, 20, 50, 40);
  expect_row(row_of(rows, "cast"), 1, 10, 10, 10, 10);
  EXPECT_TRUE(rows_by(event_times(), GroupBy::kernel).empty());
}

TEST(ProfileRows, AnEmptyProfileHasNone) {
  for (const GroupBy group :
       {GroupBy::op, GroupBy::kernel, GroupBy::phase, GroupBy::module, GroupBy::shape}) {
    EXPECT_TRUE(rows_by(Profile(), group).empty());
  }
}

void expect_split(const StepSplit& split, std::array<double, kNamesOf<WorkKind>.size()> work_us,
                  std::array<double, kNamesOf<IdleKind>.size()> idle_us) {
  for (const WorkKind kind : values_of<WorkKind>()) {
    EXPECT_NEAR(split.of(kind) * 1e3, work_us[static_cast<size_t>(kind)], kExact) << name_of(kind);
  }
  for (const IdleKind kind : values_of<IdleKind>()) {
    EXPECT_NEAR(split.of(kind) * 1e3, idle_us[static_cast<size_t>(kind)], kExact) << name_of(kind);
  }
  EXPECT_NEAR(split.work() + split.idle(), split.step_ms, kExact);
}

TEST(StepSplit, NamesEveryGap) {
  const StepSplit split = split_step(two_steps());
  EXPECT_NEAR(split.step_ms, 1.0, kExact);
  // launch call, op, between ops, synchronisation, kernel start, outside the phases
  expect_split(split, {400, 100, 150, 20}, {30, 30, 80, 130, 40, 20});
  EXPECT_NEAR(split.launches, 5.0, kExact);
  EXPECT_NEAR(split.launch_ms, 0.050, kExact);
  EXPECT_NEAR(split.wait_ms, 0.160, kExact);
}

TEST(StepSplit, OfAGraphKnowsTheGapsBetweenItsKernels) {
  expect_split(split_step(captured_steps()), {40, 0, 30, 0}, {10, 0, 0, 0, 13, 7});
}

TEST(StepSplit, CommunicationCountsWhereItIsExposed) {
  const StepSplit split = split_step(two_ranks());
  // GEMM, attention, memory-bound, copies, communication
  expect_split(split, {50, 0, 0, 5, 35}, {0, 0, 0, 0, 0, 10});
  EXPECT_NEAR(split.communication_ms, 0.075, kExact);
  const std::string text = summary_in_words(two_ranks());
  EXPECT_NE(text.find("Communication takes 75.0 us (75 %), 35.0 us (35 %) of it exposed"),
            std::string::npos)
      << text;
  EXPECT_EQ(summary_in_words(two_steps()).find("ommunication"), std::string::npos);
}

TEST(StepSplit, CommunicationOnTheCpuIsAllExposed) {
  ProfileMaker made;
  made.step(0, 100);
  const int32_t linear = made.range(RangeKind::op, "linear", 0, 80, -1, "backward");
  made.range(RangeKind::op, "exchange", 60, 80, linear, "backward");
  made.range(RangeKind::op, "gather", 90, 100, -1, "");
  const StepSplit split = split_step(made.profile);
  EXPECT_NEAR(split.of(WorkKind::gemm), 0.060, kExact);
  EXPECT_NEAR(split.of(WorkKind::communication), 0.030, kExact);
  EXPECT_NEAR(split.communication_ms, 0.030, kExact);
  EXPECT_NE(summary_in_words(made.profile).find("30.0 us (30 %), all of it exposed"),
            std::string::npos);
}

TEST(StepSplit, OnTheCpuIsTheOpsSelfTimes) {
  expect_split(split_step(cpu_step()), {40, 15, 20, 0}, {0, 0, 15, 0, 0, 10});
}

TEST(StepSplit, OfEventsCountsTheInnermostOp) {
  // The 20 us before the op's events count to the host: 10 between ops, 10 in the op.
  expect_split(split_step(event_times()), {40, 0, 10, 0}, {0, 10, 10, 0, 0, 30});
}

// Without CUPTI a replayed graph is one event; a phase may be one too.
TEST(StepSplit, OfAnEventWithoutItsOpDoesNotGuess) {
  ProfileMaker made;
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::events;
  made.step(0, 100);
  made.device(DeviceEventKind::op, "step", 10, 40, -1, 0);
  const int32_t backward = made.range(RangeKind::phase, "backward", 40, 60, -1, "backward");
  made.device(DeviceEventKind::op, "backward", 40, 80, backward, 0);
  const int32_t optimizer = made.range(RangeKind::phase, "optimizer", 60, 70, -1, "optimizer");
  made.device(DeviceEventKind::op, "optimizer", 80, 90, optimizer, 0);
  expect_split(split_step(made.profile), {0, 0, 10, 0, 0, 70}, {0, 0, 0, 0, 0, 20});
}

// Two streams, 0 to 60 and 40 to 100: overlapping time counts once.
TEST(StepSplit, CountsOverlappingKernelsOnce) {
  ProfileMaker made;
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::cupti;
  made.step(0, 100);
  made.device(DeviceEventKind::kernel, kGemm, 0, 60, -1, 0, 0, 7);
  made.device(DeviceEventKind::kernel, "add_kernel", 40, 100, -1, 0, 0, 8);
  expect_split(split_step(made.profile), {40, 0, 60, 0}, {});
}

// The driver's call inside the runtime's is no second launch.
TEST(StepSplit, CountsACallWithinACallOnce) {
  ProfileMaker made;
  made.step(0, 100);
  made.call("cudaLaunchKernel", 10, 30, -1);
  made.call("cuLaunchKernel", 12, 28, -1);
  made.call("cudaMemsetAsync", 40, 45, -1);
  const StepSplit split = split_step(made.profile);
  EXPECT_NEAR(split.launches, 2.0, kExact);
  EXPECT_NEAR(split.launch_ms, 0.025, kExact);
}

TEST(StepSplit, OfNothingIsNothing) {
  EXPECT_EQ(split_step(Profile()).step_ms, 0.0);
}

void expect_words(const Profile& profile, const std::vector<std::string>& parts) {
  const std::string words = summary_in_words(profile);
  for (const std::string& part : parts) {
    EXPECT_NE(words.find(part), std::string::npos) << words << "lacks: " << part;
  }
}

TEST(SummaryInWords, SaysWhereAStepGoes) {
  Profile profile = two_steps();
  profile.unprofiled_step_ms = 0.98;
  profile.note = "Steps ran uncaptured.";
  expect_words(
      profile,
      {"Note: Steps ran uncaptured.\n",
       "In a step's 1.00 ms the GPU computes 0.67 ms (67 %): GEMM 40 %, memory-bound kernels 15 %, "
       "attention 10 %, copies 2.0 %.\n",
       "It idles 0.33 ms (33 %): synchronisation 13 %, waiting for the host between ops 8.0 %, "
       "between kernels already launched 4.0 %, launch overhead 3.0 %, waiting for the host inside "
       "ops 3.0 %, outside the phases 2.0 %.\n",
       "Launches cost the host 50.0 us a step: 5 calls of 10.0 us; it waits for the GPU 0.16 ms.\n",
       "The median step takes 1.00 ms with the profiler, 0.98 ms without: it adds 2.0 %.\n",
       "At most 3.0 MiB of memory are in use, 4.0 MiB reserved.\n", "read values back less often"});
}

TEST(SummaryInWords, OnTheCpuSpeaksOfOps) {
  expect_words(cpu_step(), {"A step takes 0.10 ms on the CPU: GEMM 40 %, memory-bound ops 20 %, "
                            "attention 15 %, modules and phases outside ops 15 %, outside the "
                            "phases 10 %.\n"});
  EXPECT_EQ(summary_in_words(cpu_step()).find("GPU"), std::string::npos);
}

TEST(SummaryInWords, OfEventsSaysSo) {
  expect_words(event_times(),
               {"ops: there are no times of single kernels.\n", "memory-bound ops 10 %"});
}

// Advises only above the threshold, and only if the user has not captured a graph already.
TEST(SummaryInWords, AdvisesAGraphWhereTheHostIsSlow) {
  const auto profile_of = [](int64_t kernel_end) {
    ProfileMaker made;
    made.profile.target = "train";
    made.profile.on_gpu = true;
    made.profile.gpu_times = GpuTimes::cupti;
    made.step(0, 100);
    const int32_t op = made.range(RangeKind::op, "add", 0, 100, -1, "");
    made.kernel("add_kernel", 0, kernel_end, op, 0);
    return std::move(made.profile);
  };
  const auto advised = [](const Profile& profile) {
    return summary_in_words(profile).find("capture the step as a graph") != std::string::npos;
  };
  Profile slow = profile_of(70);
  EXPECT_TRUE(advised(slow));
  slow.captured = true;
  EXPECT_FALSE(advised(slow));
  EXPECT_FALSE(advised(profile_of(90)));
  slow.captured = false;
  slow.target = "softmax";  // it has no graph
  EXPECT_FALSE(advised(slow));
}

TEST(SummaryInWords, AdvisesAgainstNaiveAttention) {
  ProfileMaker made;
  made.step(0, 100);
  const int32_t naive = made.range(RangeKind::op, "naive_attention", 0, 90, -1, "");
  made.range(RangeKind::op, "matmul", 10, 80, naive, "");
  expect_words(made.profile, {"attention = flash"});
  EXPECT_EQ(summary_in_words(made.profile).find("kernels = fused"), std::string::npos);
}

TEST(WorkKind, IsToldByName) {
  EXPECT_EQ(kernel_kind(kGemm), WorkKind::gemm);
  EXPECT_EQ(kernel_kind("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>(Params)"),
            WorkKind::gemm);
  EXPECT_EQ(kernel_kind("void cublasLt::splitKreduce_kernel<32, 16>(int)"), WorkKind::gemm);
  EXPECT_EQ(kernel_kind("void (anonymous namespace)::hopper_swiglu_product_kernel<SwigluForward>("
                        "SwigluForward)"),
            WorkKind::gemm);
  EXPECT_EQ(kernel_kind(kAttention), WorkKind::attention);
  EXPECT_EQ(kernel_kind(kAdamW), WorkKind::memory_bound);
  // An argument's type says nothing about the kernel.
  EXPECT_EQ(kernel_kind("void quern::kernels::cuda::rope_kernel<float>(AttentionLayout)"),
            WorkKind::memory_bound);
  EXPECT_EQ(op_kind("linear"), WorkKind::gemm);
  EXPECT_EQ(op_kind("rope_attention"), WorkKind::attention);
  EXPECT_EQ(op_kind("softmax"), WorkKind::memory_bound);
  EXPECT_EQ(op_kind("all_reduce"), WorkKind::communication);
  EXPECT_EQ(kernel_kind("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            WorkKind::communication);
}

TEST(WorkKind, ShortKernelNamesKeepWhatTellsThemApart) {
  EXPECT_EQ(short_kernel_name(kAttention), "hopper_attention_forward_kernel<128, true>");
  EXPECT_EQ(short_kernel_name(kAdamW), "adamw_kernel");
  EXPECT_EQ(short_kernel_name(kGemm), kGemm);
  EXPECT_EQ(short_kernel_name("void f<(g)1>(void (*)(int))"), "f<(g)1>");
  EXPECT_EQ(short_kernel_name(""), "");
}

}  // namespace
}  // namespace quern
