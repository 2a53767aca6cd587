#include "profile/memory/memory_page.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
using nlohmann::json;

TracedAllocation allocation(int64_t bytes, int64_t allocated, int64_t released,
                            MemoryCategory category, int32_t name) {
  TracedAllocation a;
  a.bytes = bytes;
  a.allocated = allocated;
  a.released = released;
  a.category = category;
  a.name = name;
  return a;
}

// Peak at 30: 1000 + 200 + 50.
MemoryTrace small_trace(const std::string& name = "rms_norm") {
  MemoryTrace trace;
  trace.device = "cpu";
  const int32_t id = trace.names.id(name), weights = trace.names.id("parameters");
  trace.allocations = {allocation(1000, 10, -1, MemoryCategory::parameters, weights),
                       allocation(200, 20, 60, MemoryCategory::activations, id),
                       allocation(50, 30, 40, MemoryCategory::other, id)};
  trace.allocations[1].place.module = trace.names.id("model.layers.0");
  trace.segments = {{0, 4096, 5, -1}};
  trace.phases = {{trace.names.id("forward"), 15, 35}};
  trace.end = 100;
  trace.stats.reserved = 4096;
  return trace;
}

json data_of(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="data">)";
  const size_t begin = page.find(open) + open.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(MemoryPage, HoldsTheTrace) {
  const json data = data_of(memory_page(small_trace(), "a model"));
  EXPECT_EQ(data["subject"], "a model");
  EXPECT_EQ(data["peak"]["bytes"], 1250);
  EXPECT_EQ(data["peak"]["time"], 30);
  EXPECT_EQ(data["peak"]["by_category"], json({1000, 0, 0, 200, 0, 50}));
  const json& a = data["allocations"][1];  // since the one before, bytes, life, category, name
  EXPECT_EQ(a[0], 10);
  EXPECT_EQ(a[1], 200);
  EXPECT_EQ(a[2], 40);
  EXPECT_EQ(data["categories"][a[3].get<size_t>()], "activations");
  EXPECT_EQ(data["names"][a[4].get<size_t>()], "rms_norm");
  EXPECT_EQ(data["names"][data["places"][a[5].get<size_t>()][1].get<size_t>()], "model.layers.0");
  EXPECT_EQ(data["allocations"][0][2], -1);
  EXPECT_EQ(data["segments"], json({{5, 4096, -1}}));
  EXPECT_EQ(data["phases"][0][1], 15);
}

TEST(MemoryPage, LoadsNothing) {
  const std::string page = memory_page(small_trace(), "a model");
  for (const char* what : {"http:", "https:", "src=", "@import", "url(", "fetch(", "import "}) {
    EXPECT_EQ(page.find(what), std::string::npos) << what;
  }
  for (const char* part : {"@style@", "@data@", "@script@"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

TEST(MemoryPage, ANameCannotEndTheScript) {
  const std::string name = "</script><b>@script@ \"\\ \xff";
  const json data = data_of(memory_page(small_trace(name), ""));
  EXPECT_EQ(data["names"][1].get<std::string>().substr(0, 22), "</script><b>@script@ \"");
}

TEST(MemoryPage, AnEmptyTraceIsAPage) {
  const json data = data_of(memory_page(MemoryTrace{}, ""));
  EXPECT_EQ(data["allocations"], json::array());
  EXPECT_EQ(data["segments"], json::array());
  EXPECT_EQ(data["peak"]["bytes"], 0);
}

TEST(MemoryPage, AHundredThousandEventsStaySmall) {
  MemoryTrace trace;
  const int32_t name = trace.names.id("linear");
  for (int64_t i = 0; i < 50000; ++i) {
    trace.allocations.push_back(
        allocation(1 << 20, 1000 * i, 1000 * i + 30500, MemoryCategory::activations, name));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string page = memory_page(trace, "");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(page.size(), size_t{2} << 20);  // 28 bytes an allocation, and the page itself
  EXPECT_LT(seconds.count(), 5.0);          // measured 0.1
  EXPECT_EQ(data_of(page)["peak"]["bytes"], int64_t{31} << 20);
}

TEST(MemoryPage, NamesTheFileThatItCannotWrite) {
  const TemporaryFolder folder;
  const std::string path = folder / "memory.html";
  write_memory_page(small_trace(), "a model", path);
  EXPECT_EQ(read_file(path), memory_page(small_trace(), "a model"));
  expect_error([&] { write_memory_page(small_trace(), "a model", folder / "none/memory.html"); },
               {"cannot be created", "none/memory.html"});
}

}  // namespace
}  // namespace quern
