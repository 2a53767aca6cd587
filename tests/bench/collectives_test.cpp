#include "bench/collectives.h"

#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "dist/ranged_group.h"
#include "support/files.h"
#include "support/thread_group.h"

namespace quern {
namespace {

using namespace testing_support;

// The rows of rank 0. Throws what a rank threw, the first rank's first.
std::vector<CollectiveRow> run(std::vector<std::unique_ptr<Communicator>> ranks,
                               const CollectiveBenchOptions& options) {
  std::vector<CollectiveRow> rows;
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        bench_collectives(*ranks[i], options, [&](const CollectiveRow& row) {
          if (i == 0) rows.push_back(row);
        });
      } catch (...) {
        errors[i] = std::current_exception();
        ranks[i]->abort("an error");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return rows;
}

CollectiveBenchOptions few(std::vector<int64_t> sizes) {
  return {.sizes = std::move(sizes), .warmup = 1, .steps = 3};
}

// Sizes with empty, unequal and equal slices, and beyond the period of the data.
TEST(BenchCollectives, EveryCollectiveIsCheckedAndTimed) {
  for (const int size : {1, 2, 3}) {
    const std::vector<int64_t> sizes{4, 252, 768, 1024, 6 << 20};
    const auto rows = run(thread_group(size), few(sizes));
    std::vector<std::pair<Collective, ResultPlace>> cases;
    for (const Collective collective : values_of<Collective>()) {
      for (const ResultPlace place : {ResultPlace::in, ResultPlace::out}) {
        if (has_place(collective, place)) cases.emplace_back(collective, place);
      }
    }
    ASSERT_EQ(cases.size(), 4u * 2 + 3);
    ASSERT_EQ(rows.size(), cases.size() * sizes.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const CollectiveRow& row = rows[i];
      EXPECT_EQ(std::pair(row.collective, row.place), cases[i / sizes.size()]);
      EXPECT_EQ(row.bytes, sizes[i % sizes.size()]);
      EXPECT_EQ(row.ranks, size);
      EXPECT_EQ(row.engine, "threads");
      EXPECT_EQ(row.out_of_memory, "");
      EXPECT_GT(row.time.median, 0.0);
      EXPECT_DOUBLE_EQ(row.algorithm_bandwidth(),
                       static_cast<double>(row.bytes) / (row.time.median / 1e3));
    }
  }
}

// A communicator of which one collective is wrong in one element.
class WrongRank : public RangedGroup {
 public:
  WrongRank(std::unique_ptr<Communicator> ranks, Collective wrong)
      : RangedGroup(*ranks), ranks_(std::move(ranks)), wrong_(wrong) {}

  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream stream) override {
    RangedGroup::exchange(received, data, slices, what, stream);
    spoil(Collective::exchange, received + (size() - 1) * slices.each);
  }
  void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
              const char* what, Stream stream) override {
    RangedGroup::gather(data, own, slices, width, what, stream);
    spoil(Collective::all_gather, static_cast<float*>(data) + slices.count - 1);
  }
  void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                 Stream stream) override {
    RangedGroup::broadcast(to, from, bytes, root, what, stream);
    spoil(Collective::broadcast, static_cast<float*>(to));
  }
  void all_reduce(float* to, const float* from, int64_t count, const char* what,
                  Stream stream) override {
    RangedGroup::all_reduce(to, from, count, what, stream);
    if (count > 1) spoil(Collective::all_reduce, to + 1);
  }
  void reduce_scatter(float* own, const float* data, const RankSlices& slices, const char* what,
                      Stream stream) override {
    RangedGroup::reduce_scatter(own, data, slices, what, stream);
    spoil(Collective::reduce_scatter, own);
  }

 private:
  void spoil(Collective collective, float* element) const {
    if (collective == wrong_) *element += 0.001f;
  }

  std::unique_ptr<Communicator> ranks_;
  Collective wrong_;
};

TEST(BenchCollectives, AWrongResultIsAnError) {
  for (const Collective wrong :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::exchange}) {
    for (const ResultPlace place : {ResultPlace::in, ResultPlace::out}) {
      if (!has_place(wrong, place)) continue;
      std::vector<std::unique_ptr<Communicator>> ranks;
      for (auto& rank : thread_group(2)) {
        ranks.push_back(std::make_unique<WrongRank>(std::move(rank), wrong));
      }
      expect_error(
          [&] {
            CollectiveBenchOptions options = few({1024});
            options.places = {place};
            run(std::move(ranks), options);
          },
          {"bench collectives: rank 0 of 2",
           cat(name_of(wrong), place == ResultPlace::in ? " in place" : "",
               " of 1024 bytes: element"),
           ", expected"});
    }
  }
}

// The sums of an exchange are wrong too, and compared exactly.
TEST(BenchCollectives, OrderedSumsAreChecked) {
  for (const Collective collective :
       {Collective::ordered_reduce_scatter, Collective::ordered_all_reduce}) {
    std::vector<std::unique_ptr<Communicator>> ranks;
    for (auto& rank : thread_group(2)) {
      ranks.push_back(std::make_unique<WrongRank>(std::move(rank), Collective::exchange));
    }
    CollectiveBenchOptions options = few({1024});
    options.collectives = {collective};
    expect_error([&] { run(std::move(ranks), options); }, {name_of(collective), "element 0 is"});
  }
}

TEST(BenchCollectives, RefusesUnusableSizes) {
  for (const int64_t bytes : {0, 2, 1023, -4}) {
    EXPECT_THROW(check_collective_sizes({bytes}), UsageError) << bytes;
  }
}

TEST(BenchCollectives, TheDefaultSizesOfTheCpu) {
  EXPECT_EQ(default_collective_sizes(), (std::vector<int64_t>{1 << 10, 1 << 12, 1 << 14, 1 << 16,
                                                              1 << 18, 1 << 20, 1 << 22, 1 << 24}));
}

// nccl-tests, doc/PERFORMANCE.md.
TEST(CollectiveTable, GivesTheBusBandwidthOfNcclTests) {
  const std::map<Collective, double> factors{
      {Collective::all_reduce, 1.5},        {Collective::reduce_scatter, 0.75},
      {Collective::all_gather, 0.75},       {Collective::broadcast, 1.0},
      {Collective::exchange, 0.75},         {Collective::ordered_reduce_scatter, 0.75},
      {Collective::ordered_all_reduce, 1.5}};
  for (const Collective collective : values_of<Collective>()) {
    CollectiveRow row{collective, ResultPlace::out, "NCCL 2.28.3", 4, 4'000'000, {}, {}};
    row.time.median = 0.1;  // 40 GB/s
    row.time.std = 0.002;
    Table json(TableFormat::json, kTextWidth, "quern-test");
    const auto parsed = nlohmann::json::parse(json.add(table_row(row)));
    EXPECT_EQ(parsed.at("collective"), name_of(collective));
    EXPECT_EQ(parsed.at("place"), "out");
    EXPECT_EQ(parsed.at("engine"), "NCCL 2.28.3");
    EXPECT_EQ(parsed.at("ranks"), 4);
    EXPECT_EQ(parsed.at("bytes"), 4'000'000);
    EXPECT_EQ(parsed.at("us"), 100.0);
    EXPECT_EQ(parsed.at("std_us"), 2.0);
    EXPECT_EQ(parsed.at("algbw_gb_s"), 40.0);
    EXPECT_EQ(parsed.at("busbw_gb_s"), 40.0 * factors.at(collective));
    Table text(TableFormat::text, kTextWidth, "quern-test");
    EXPECT_NE(text.add(table_row(row)).find("bus GB/s"), std::string::npos);
  }
}

}  // namespace
}  // namespace quern
