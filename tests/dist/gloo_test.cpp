#include "dist/gloo.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

#include "dist/host_name.h"
#include "support/collectives.h"
#include "support/files.h"
#include "support/forked_ranks.h"

namespace quern {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class GlooTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      const auto store = open_store({"file:" + (folder_ / "alone").string()});
      gloo_group(*store, 0, 1, milliseconds(10000));
    } catch (const CommunicationError&) {
      throw;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // `work` on each rank of a group.
  ForkedRanks::Work in_group(int size, milliseconds limit,
                             std::function<std::string(Communicator&)> work) {
    const std::string address = "file:" + (folder_ / cat("ranks", ++groups_)).string();
    return [=](int rank) {
      const auto store = open_store({address, rank, size, milliseconds(10000)});
      const auto group = gloo_group(*store, rank, size, limit);
      return work(*group);
    };
  }

  TemporaryFolder folder_;
  int groups_ = 0;
};

std::string failed(int rank, int size, const std::string& rest) {
  return cat("CommunicationError: ", rank_text(rank, size), ": ", rest);
}

TEST_F(GlooTest, AllCollectives) {
  for (const int size : {1, 2, 3, 4}) {
    const auto work = in_group(size, milliseconds(10000), [](Communicator& ranks) {
      std::string error;
      uint64_t seed = 1;
      for (const int64_t count : kCollectiveCounts) {
        if (error.empty()) error = CollectiveCheck(ranks, count, seed++).run();
      }
      // Several TCP segments, in socket buffers of any size.
      if (error.empty()) error = CollectiveCheck(ranks, 300001, seed).run();
      return error;
    });
    ForkedRanks ranks(size, work);
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.text(rank), "");
  }
}

TEST_F(GlooTest, EngineHasItsVersion) {
  ForkedRanks ranks(
      1, in_group(1, milliseconds(10000), [](Communicator& ranks) { return ranks.engine(); }));
  EXPECT_TRUE(ranks.text(0).starts_with("Gloo 0."));
}

// All ranks get the same bits, whatever the order of the sum.
TEST_F(GlooTest, AllReduceGivesEveryRankTheSameBits) {
  const auto work = in_group(3, milliseconds(10000), [](Communicator& ranks) {
    auto data = RankData(5).values(ranks.rank(), 1000);
    ranks.all_reduce(data.data(), 1000, "the loss", {});
    return std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  });
  ForkedRanks ranks(3, work);
  const std::string first = ranks.text(0);
  EXPECT_EQ(first.size(), 4000u);
  EXPECT_EQ(ranks.text(1), first);
  EXPECT_EQ(ranks.text(2), first);
}

// What a rank calls until another one fails it.
std::string repeat(Communicator& ranks, const std::string& name, int64_t count) {
  const RankSlices slices(count, ranks.size());
  std::vector<float> data(static_cast<size_t>(count)), received(data.size() + 1024);
  for (;;) {
    if (name == "exchange") ranks.exchange(received.data(), data.data(), slices, "x", {});
    if (name == "gather") ranks.gather(data.data(), slices, 4, "x", {});
    if (name == "broadcast") ranks.broadcast(data.data(), count * 4, 0, "x", {});
    if (name == "all_reduce") ranks.all_reduce(data.data(), count, "x", {});
    if (name == "reduce_scatter") ranks.reduce_scatter(data.data(), slices, "x", {});
    if (name == "barrier") ranks.barrier("x");
  }
}

const std::vector<std::string> kNames{"exchange",   "gather",         "broadcast",
                                      "all_reduce", "reduce_scatter", "barrier"};

void expect_gone(const std::string& text, int rank, int size, const std::string& name,
                 const std::string& gone) {
  const std::string start = failed(rank, size, name + " of x: rank");
  EXPECT_TRUE(text.starts_with(start)) << text;
  EXPECT_NE(text.find(gone), std::string::npos) << text;
  EXPECT_NE(text.find(" gone: killed, ended or failed"), std::string::npos) << text;
}

TEST_F(GlooTest, OtherRanksFailAtOnceWhenOneIsKilled) {
  for (const std::string& name : kNames) {
    for (const int64_t count : {100, 1000000}) {
      const auto work = in_group(3, milliseconds(20000),
                                 [=](Communicator& ranks) { return repeat(ranks, name, count); });
      ForkedRanks ranks(3, work);
      std::this_thread::sleep_for(milliseconds(300));
      const auto begin = Clock::now();
      ranks.kill(1);
      EXPECT_EQ(ranks.text(1), "signal 9");
      for (const int rank : {0, 2}) {
        expect_gone(ranks.text(rank), rank, 3, name, "rank");
      }
      EXPECT_LT(Clock::now() - begin, milliseconds(10000)) << name;
    }
  }
}

TEST_F(GlooTest, OtherRanksFailWithinTheLimitWhenOneIsStopped) {
  for (const std::string& name : kNames) {
    const auto work = in_group(3, milliseconds(500),
                               [=](Communicator& ranks) { return repeat(ranks, name, 100000); });
    ForkedRanks ranks(3, work);
    std::this_thread::sleep_for(milliseconds(300));
    const auto begin = Clock::now();
    ranks.send(1, SIGSTOP);
    const std::string late = "no answer within 500 ms: a rank hangs, or calls something else";
    int late_ranks = 0;
    for (const int rank : {0, 2}) {
      const std::string text = ranks.text(rank);
      if (text == failed(rank, 3, name + " of x: " + late)) {
        ++late_ranks;
      } else {  // the other one failed first
        expect_gone(text, rank, 3, name, cat("rank ", 2 - rank, " is"));
      }
    }
    EXPECT_GE(late_ranks, 1) << name;
    EXPECT_LT(Clock::now() - begin, milliseconds(5000)) << name;
  }
}

}  // namespace
}  // namespace quern
