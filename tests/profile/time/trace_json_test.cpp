#include "profile/time/trace_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "profile/time/made_profile.h"
#include "support/files.h"
#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;

std::string trace_text(const Profile& profile) {
  std::ostringstream out;
  write_trace(profile, out);
  return out.str();
}

std::vector<Json> events_of(const Profile& profile) {
  return Json::parse(trace_text(profile)).at("traceEvents").get<std::vector<Json>>();
}

std::vector<Json> of_phase(const std::vector<Json>& events, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

Json slice_named(const std::vector<Json>& events, const std::string& name) {
  for (const Json& event : of_phase(events, "X")) {
    if (event.at("name") == name) return event;
  }
  ADD_FAILURE() << "no slice " << name;
  return {};
}

using Thread = std::pair<int, int>;
Thread thread_of(const Json& event) {
  return {event.at("pid"), event.at("tid")};
}

struct Span {
  double begin, end;
};

std::map<Thread, std::vector<Span>> spans_of(const std::vector<Json>& events) {
  std::map<Thread, std::vector<Span>> spans;
  for (const Json& event : of_phase(events, "X")) {
    const double begin = event.at("ts"), length = event.at("dur");
    EXPECT_GE(begin, 0.0);
    EXPECT_GE(length, 0.0);
    spans[thread_of(event)].push_back({begin, begin + length});
  }
  return spans;
}

constexpr double kHalfNanosecond = 0.0005;  // sums of doubles are off by less

// In the order of writing: by begin, the outer before the inner.
void expect_nesting(const std::vector<Json>& events) {
  for (const auto& [thread, spans] : spans_of(events)) {
    std::vector<Span> open;
    double last = 0.0;
    for (const Span& span : spans) {
      EXPECT_GE(span.begin, last);
      last = span.begin;
      while (!open.empty() && open.back().end <= span.begin + kHalfNanosecond) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back().end + kHalfNanosecond) << "thread " << thread.second;
      }
      open.push_back(span);
    }
  }
}

void expect_flows_in_slices(const std::vector<Json>& events) {
  const auto spans = spans_of(events);
  std::map<int, std::pair<int, int>> ends;  // starts and finishes by id
  for (const Json& event : events) {
    if (event.at("ph") != "s" && event.at("ph") != "f") continue;
    auto& [starts, finishes] = ends[event.at("id")];
    ++(event.at("ph") == "s" ? starts : finishes);
    if (event.at("ph") == "f") {
      EXPECT_EQ(event.at("bp"), "e");
    }
    const double at = event.at("ts");
    const auto& around = spans.at(thread_of(event));
    EXPECT_TRUE(std::any_of(around.begin(), around.end(), [&](const Span& span) {
      return span.begin <= at && at < span.end;
    })) << event;
  }
  for (const auto& [id, count] : ends) EXPECT_EQ(count, std::make_pair(1, 1)) << "flow " << id;
}

void expect_names(const std::vector<Json>& events) {
  std::map<int, std::string> processes;
  std::map<Thread, std::string> threads;
  for (const Json& event : of_phase(events, "M")) {
    if (event.at("name") == "process_name")
      processes[event.at("pid")] = event.at("args").at("name");
    if (event.at("name") == "thread_name") threads[thread_of(event)] = event.at("args").at("name");
  }
  std::map<int, int> process_of;  // by the thread's number
  for (const auto& [thread, spans] : spans_of(events)) {
    EXPECT_NE(processes[thread.first], "");
    EXPECT_NE(threads[thread], "");
    EXPECT_TRUE(process_of.emplace(thread.second, thread.first).second) << "two of one number";
  }
}

void expect_rising_counters(const std::vector<Json>& events) {
  double last = -1.0;
  for (const Json& event : of_phase(events, "C")) {
    EXPECT_GT(event.at("ts").get<double>(), last);
    last = event.at("ts");
    EXPECT_TRUE(event.at("args").at("allocated").is_number_integer());
    EXPECT_TRUE(event.at("args").at("reserved").is_number_integer());
  }
}

void expect_well_formed(const Profile& profile) {
  const std::vector<Json> events = events_of(profile);
  expect_nesting(events);
  expect_flows_in_slices(events);
  expect_names(events);
  expect_rising_counters(events);
}

TEST(Trace, KeepsTheFormatsRules) {
  for (const Profile& profile :
       {two_steps(), captured_steps(), cpu_step(), event_times(), Profile()}) {
    SCOPED_TRACE(profile.target + " on " + profile.device);
    expect_well_formed(profile);
  }
}

TEST(Trace, HasEveryEvent) {
  const Profile profile = two_steps();
  const std::vector<Json> events = events_of(profile);
  EXPECT_EQ(of_phase(events, "X").size(), profile.steps.size() + profile.ranges.size() +
                                              profile.calls.size() + profile.device_events.size());
  EXPECT_EQ(of_phase(events, "s").size(), 10u);  // of 13 events, three of which no call is known
  EXPECT_EQ(of_phase(events, "f").size(), 10u);
  EXPECT_EQ(of_phase(events, "C").size(), profile.memory.size());
}

TEST(Trace, SlicesSayWhatTheyAre) {
  const std::vector<Json> events = events_of(two_steps());
  const Json linear = slice_named(events, "linear backward");
  EXPECT_EQ(linear.at("cat"), "op");
  EXPECT_EQ(linear.at("args"),
            Json({{"phase", "backward"}, {"module", kLayer}, {"shapes", "(4, 8) (8, 8)"}}));
  const Json attention = slice_named(events, "hopper_attention_forward_kernel<128, true>");
  EXPECT_EQ(attention.at("cat"), "kernel");
  EXPECT_EQ(attention.at("args").at("kernel"), kAttention);
  EXPECT_EQ(attention.at("args").at("op"), "rope_attention");
  EXPECT_EQ(attention.at("args").at("module"), kLayer);
  const Json copy = slice_named(events, "copy device to host");
  EXPECT_EQ(copy.at("cat"), "copy");
  EXPECT_EQ(copy.at("args"), Json({{"bytes", 4096}}));
}

// The step begins 1000 us after the first event, at 2000 of the clock.
TEST(Trace, TimesAreMicrosecondsSinceTheFirstEvent) {
  ProfileMaker made;
  made.profile.ranges.push_back({RangeKind::op, false, made.profile.names.id("add"), 0, 0, 0, -1,
                                 5'000'000'000'123, 5'000'000'001'128});
  made.profile.ranges.push_back({RangeKind::op, false, made.profile.names.id("mul"), 0, 0, 0, -1,
                                 5'000'000'001'130, 5'000'000'001'131});
  const std::string text = trace_text(made.profile);
  EXPECT_NE(text.find("\"ts\":0.000,\"dur\":1.005,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"ts\":1.007,\"dur\":0.001,"), std::string::npos) << text;
}

TEST(Trace, CutsWhatTheRoundingOfClocksLetStickOut) {
  ProfileMaker made;
  const int32_t outer = made.range(RangeKind::op, "outer", 0, 10, -1, "");
  made.range(RangeKind::op, "inner", 2, 11, outer, "");
  made.range(RangeKind::op, "next", 10, 20, -1, "");
  expect_well_formed(made.profile);
  EXPECT_EQ(slice_named(events_of(made.profile), "inner").at("dur"), 8.0);
}

TEST(Trace, GivesOverlappingKernelsAThreadOfTheirOwn) {
  ProfileMaker made;
  made.profile.gpu_times = GpuTimes::cupti;
  made.profile.device = "a GPU";
  made.kernel("first", 0, 50, -1, 0);
  made.kernel("second", 40, 90, -1, 0);
  made.kernel("third", 60, 95, -1, 0);
  expect_well_formed(made.profile);
  const std::vector<Json> events = events_of(made.profile);
  EXPECT_EQ(slice_named(events, "first").at("dur"), 50.0);
  EXPECT_EQ(slice_named(events, "second").at("dur"), 50.0);
  EXPECT_NE(slice_named(events, "first").at("tid"), slice_named(events, "second").at("tid"));
  EXPECT_EQ(slice_named(events, "first").at("tid"), slice_named(events, "third").at("tid"));
}

// A graph's launch has an arrow to each of its kernels. Arrows back in time are left out.
TEST(Trace, ArrowsGoFromCallsToKernels) {
  EXPECT_EQ(of_phase(events_of(captured_steps()), "s").size(), 4u);
  ProfileMaker made;
  made.profile.gpu_times = GpuTimes::cupti;
  made.kernel("early", 0, 5, -1, made.call("cudaLaunchKernel", 10, 20, -1));
  EXPECT_TRUE(of_phase(events_of(made.profile), "s").empty());
  expect_well_formed(made.profile);
}

TEST(Trace, OfSeveralMemoryPointsAtOneTimeTheLastHolds) {
  ProfileMaker made;
  made.memory(1, 10, 20);
  made.memory(1, 15, 20);
  made.memory(2, 5, 20);
  const std::vector<Json> counters = of_phase(events_of(made.profile), "C");
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0].at("args").at("allocated"), 15);
  EXPECT_EQ(counters[0].at("name"), "memory in use");
}

TEST(Trace, EscapesNames) {
  ProfileMaker made;
  made.profile.device = "a \"GPU\"\n\xff";
  made.range(RangeKind::op, "quote\" back\\slash \t \x01", 0, 10, -1, "phase\"");
  expect_well_formed(made.profile);
  EXPECT_EQ(slice_named(events_of(made.profile), "quote\" back\\slash \t \x01").at("cat"), "op");
}

// Read by a separate program.
TEST(Trace, PassesTheScriptThatChecksTraces) {
  const TemporaryFolder folder;
  const std::string checker = "python3 tests/tools/check_trace.py ";
  for (const Profile& profile : {two_steps(), captured_steps(), cpu_step(), event_times()}) {
    const auto path = write_file(folder / "trace.json", trace_text(profile));
    const Outcome outcome = run_shell(checker + path.string());
    if (outcome.code == 127) GTEST_SKIP() << "no python3";
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  }
}

TEST(TraceSlices, AreCutOnlyWhereTheyStickOut) {
  std::vector<Slice> slices{{5, 9, 0}, {0, 10, 1}, {8, 12, 2}, {10, 11, 3}, {0, 4, 4}};
  nest(slices);
  std::vector<std::vector<int64_t>> found;
  for (const Slice& s : slices) found.push_back({s.begin, s.end, static_cast<int64_t>(s.event)});
  EXPECT_EQ(found, (std::vector<std::vector<int64_t>>{
                       {0, 10, 1}, {0, 4, 4}, {5, 9, 0}, {8, 9, 2}, {10, 11, 3}}));
}

TEST(TraceSlices, AClocksErrorMakesNoLane) {
  EXPECT_EQ(lanes_of({{0, 1000, 0}, {1000 - kClockError, 2000, 1}}).size(), 1u);
  EXPECT_EQ(lanes_of({{0, 1000, 0}, {999 - kClockError, 2000, 1}}).size(), 2u);
  EXPECT_EQ(lanes_of({{0, 1000, 0}, {0, 1000, 1}, {0, 1000, 2}}).size(), 3u);
}

}  // namespace
}  // namespace quern
