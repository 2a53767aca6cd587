// memory.pickle, read by Python's standard library (tests/tools/check_memory_snapshot.py).
#include "profile/memory/memory_snapshot.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "optim/adamw.h"
#include "profile/memory/memory_recorder.h"
#include "profile/memory/pickle_writer.h"
#include "run/model_instance.h"
#include "support/program.h"
#include "support/training.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern {
namespace {

using namespace testing_support;

bool python_is_there() {
  return run_shell("command -v python3").code == 0;
}

// The checker's output for the snapshot.
nlohmann::json checked(const MemoryTrace& trace, const std::filesystem::path& file) {
  write_memory_snapshot(trace, file);
  const Outcome outcome =
      run_shell("python3 tests/tools/check_memory_snapshot.py '" + file.string() + "'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
}

// The value of a Python expression over `x`, the pickle's content.
std::string python(const std::string& pickle, const std::string& expression) {
  const TemporaryFolder folder;
  write_file(folder / "x.pickle", pickle);
  const Outcome outcome = run_shell(
      "python3 -c 'import pickle, sys; x = pickle.load(open(sys.argv[1], \"rb\")); print(" +
      expression + ")' '" + (folder / "x.pickle").string() + "'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

struct MemorySnapshot : testing::Test {
  void SetUp() override {
    if (!python_is_there()) GTEST_SKIP() << "no python3";
  }
  TemporaryFolder folder;
  Context context{kCpu};
  ContextScope scope{context};
  Allocator& allocator = *context.allocator(kCpu);
};

TEST_F(MemorySnapshot, PickledValuesAreRead) {
  PickleWriter out;
  out.begin_list();
  const std::vector<int64_t> numbers = {0,          255,         256,        65535,
                                        65536,      -1,          -300,       1 << 30,
                                        2147483647, -2147483648, 2147483648, int64_t{1} << 47,
                                        INT64_MAX,  INT64_MIN};
  for (const int64_t n : numbers) out.integer(n);
  out.boolean(true);
  out.boolean(false);
  out.text("");
  out.text(std::string(300, 'x'));
  out.text("W\xc3\xbcrfel");
  out.tuple(1, 70000);
  out.begin_dict();
  out.end();
  out.end();
  const std::string expected =
      "[0, 255, 256, 65535, 65536, -1, -300, 1073741824, 2147483647, -2147483648, 2147483648, "
      "140737488355328, 9223372036854775807, -9223372036854775808, True, False, '', '" +
      std::string(300, 'x') + "', 'W\xc3\xbcrfel', (1, 70000), {}]\n";
  EXPECT_EQ(python(out.take(), "x"), expected);
}

TEST_F(MemorySnapshot, LongListsAndManyTextsAreRead) {
  PickleWriter out;
  out.begin_dict();
  for (int i = 0; i < 3000; ++i) {
    out.key(cat("key", i));
    out.begin_list();
    out.text(cat("key", i));
    const uint32_t number = out.remember();
    out.again(number);
    out.end();
  }
  out.key("long");
  out.begin_list();
  for (int i = 0; i < 2500; ++i) out.integer(i);
  out.end();
  out.end();
  EXPECT_EQ(python(out.take(),
                   "len(x), x[\"long\"] == list(range(2500)), "
                   "all(x[f\"key{i}\"] == [f\"key{i}\"] * 2 for i in range(3000))"),
            "3001 True True\n");
}

TEST_F(MemorySnapshot, ATrainingStepIsWhole) {
  MemoryRecorder recorder;
  ModelInstance instance(tiny_model(), {}, InitScheme::normal, true, 1);
  AdamW optimizer(instance.arena, {});
  TrainingStep step(instance, optimizer, false);
  const Tensor tokens = random_integers({2, 48}, 300);
  for (int i = 0; i < 3; ++i) step.run(tokens, tokens, {});
  allocator.release(allocator.allocate(int64_t{40} << 20, "large"));
  allocator.release_cached();
  allocator.release(allocator.allocate(0, "nothing"));
  const MemoryTrace trace = recorder.trace();
  const nlohmann::json seen = checked(trace, folder / "memory.pickle");
  ASSERT_FALSE(seen.empty());
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(seen["allocated"], stats.allocated);
  EXPECT_EQ(seen["reserved"], stats.reserved);
  EXPECT_EQ(seen["peak"], stats.peak_allocated);
  EXPECT_EQ(seen["live"], stats.allocations);
  EXPECT_EQ(seen["dropped"], 0);
  const MemoryByCategory bytes = by_category(trace, live_at(trace, trace.end));
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const std::string name = name_of(static_cast<MemoryCategory>(i));
    EXPECT_EQ(seen["categories"].value(name, int64_t{0}), bytes[i]) << name;
  }
}

TEST_F(MemorySnapshot, AShortHistoryIsStillConsistent) {
  MemoryRecorder recorder(50);
  ModelInstance instance(tiny_model(), {}, InitScheme::normal, true, 1);
  AdamW optimizer(instance.arena, {});
  TrainingStep step(instance, optimizer, false);
  const Tensor tokens = random_integers({2, 48}, 300);
  for (int i = 0; i < 3; ++i) step.run(tokens, tokens, {});
  const nlohmann::json seen = checked(recorder.trace(), folder / "memory.pickle");
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen["allocated"], allocator.stats().allocated);
  EXPECT_GT(seen["dropped"], 0);
}

TEST_F(MemorySnapshot, FramesSayWhere) {
  MemoryRecorder recorder;
  const Tensor kept = [] {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope model(RangeKind::module, "model");
    const RangeScope layer(RangeKind::module, "layers.11");
    const RangeScope part(RangeKind::module, "self_attn");
    const RangeScope op("rms_norm");
    return Tensor::empty({100}, DType::f32, "rms_norm rstd");
  }();
  const std::string frames =
      "[(f[\"filename\"], f[\"name\"]) for f in x[\"device_traces\"][0][-2][\"frames\"]]";
  EXPECT_EQ(python(memory_snapshot(recorder.trace()), frames),
            "[('allocation', 'rms_norm rstd'), ('op', 'rms_norm'), ('module', 'self_attn'), "
            "('module', 'layers.11'), ('module', 'model'), ('phase', 'forward')]\n");
}

TEST_F(MemorySnapshot, AFailureIsTheLastEvent) {
  MemoryRecorder recorder;
  allocator.set_limit(int64_t{4} << 20);
  const Tensor held = zeros({1000});
  EXPECT_THROW(zeros({int64_t{1} << 21}), OutOfMemory);
  const std::optional<MemoryTrace> failed = recorder.take_failure();
  ASSERT_TRUE(failed);
  const nlohmann::json seen = checked(*failed, folder / "memory.pickle");
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen["ooms"], 1);
  EXPECT_EQ(seen["allocated"], 4000);
}

TEST_F(MemorySnapshot, AnUnwritableFileIsNamed) {
  expect_error([&] { write_memory_snapshot({}, folder / "no" / "memory.pickle"); },
               {"memory.pickle", "cannot be created"});
}

// The checker must reject wrong snapshots.
TEST_F(MemorySnapshot, TheCheckerSeesWhatIsWrong) {
  MemoryRecorder recorder;
  const Tensor a = zeros({1000}), b = zeros({1000});
  MemoryTrace trace = recorder.trace();
  const auto complaint = [&](const MemoryTrace& wrong) {
    write_memory_snapshot(wrong, folder / "wrong.pickle");
    return run_shell("python3 tests/tools/check_memory_snapshot.py '" +
                     (folder / "wrong.pickle").string() + "'")
        .err;
  };
  EXPECT_EQ(complaint(trace), "");
  MemoryTrace overlap = trace;
  overlap.allocations[0].bytes += 4096;
  overlap.allocations[0].released = overlap.end;
  EXPECT_NE(complaint(overlap).find("overlaps"), std::string::npos);
  MemoryTrace outside = trace;
  outside.segments[0].unreserved = outside.end;
  EXPECT_THROW(memory_snapshot(outside), Error) << "an allocation in no segment";
  MemoryTrace peak = trace;
  peak.stats.peak_allocated += 1;
  EXPECT_NE(complaint(peak).find("the peak is"), std::string::npos);
}

}  // namespace
}  // namespace quern
