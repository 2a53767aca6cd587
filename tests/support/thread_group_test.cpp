#include "support/thread_group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "support/collectives.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace quern {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Texts = std::vector<std::string>;

TEST(ThreadGroupTest, AllCollectives) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const Texts texts = run_thread_ranks(size, {}, [](Communicator& ranks) {
      std::string error;
      uint64_t seed = 1;
      for (const int64_t count : kCollectiveCounts) {
        if (error.empty()) error = CollectiveCheck(ranks, count, seed++).run();
      }
      return error;
    });
    EXPECT_EQ(texts, Texts(static_cast<size_t>(size)));
  }
}

// The seed decides about order, delays and the count.
TEST(ThreadGroupTest, AllCollectivesUnderManySeeds) {
  for (uint64_t seed = 1; seed <= (kSanitized ? 300 : 3000); ++seed) {
    const int size = 2 + static_cast<int>(seed % 2);
    const auto count = static_cast<int64_t>(seed % 200);
    const Texts texts = run_thread_ranks(size, {seed}, [&](Communicator& ranks) {
      return CollectiveCheck(ranks, count, seed).run_one_of_each();
    });
    ASSERT_EQ(texts, Texts(static_cast<size_t>(size))) << "seed " << seed;
  }
}

// One of each collective.
std::string all_of_x(Communicator& ranks) {
  const RankSlices slices(100, ranks.size());
  std::vector<float> data(100), received(static_cast<size_t>(ranks.size() * slices.each));
  ranks.exchange(received.data(), data.data(), slices, "x", {});
  ranks.gather(data.data(), slices, 4, "x", {});
  ranks.share(data.data(), {{0, 40, 0}, {40, 4, 1}}, "x", {});
  ranks.broadcast(data.data(), 400, 0, "x", {});
  ranks.all_reduce(data.data(), 100, "x", {});
  ranks.reduce_scatter(data.data(), slices, "x", {});
  ranks.barrier("x");
  return "all";
}
const Texts kNames{"exchange",   "gather",         "share",  "broadcast",
                   "all_reduce", "reduce_scatter", "barrier"};

TEST(ThreadGroupTest, ARankDiesAtEachCollective) {
  for (const uint64_t seed : {0, 3}) {
    for (int64_t at = 0; at < std::ssize(kNames); ++at) {
      const std::string title = kNames[static_cast<size_t>(at)] + " of x: ";
      const Texts texts = run_thread_ranks(3, {seed, 1, at, milliseconds(10000)}, all_of_x);
      EXPECT_EQ(texts, (Texts{"rank 0 of 3: " + title + "rank 1 is gone",
                              "rank 1 of 3: " + title + "the rank dies at its collective " +
                                  std::to_string(at),
                              "rank 2 of 3: " + title + "rank 1 is gone"}));
    }
    const Texts texts = run_thread_ranks(3, {seed, 1, 7, milliseconds(10000)}, all_of_x);
    EXPECT_EQ(texts, (Texts{"all", "all", "all"}));
  }
}

TEST(ThreadGroupTest, ADeadRankStaysDead) {
  const auto ranks = thread_group(1, {0, 0, 0, milliseconds(100)});
  for (int i = 0; i < 2; ++i) {
    expect_error([&] { ranks[0]->barrier("x"); }, {"the rank dies at its collective 0"});
  }
}

TEST(ThreadGroupTest, APatientRankWaitsBeyondTheLimit) {
  const Texts texts = run_thread_ranks(2, {.limit = milliseconds(200)}, [](Communicator& ranks) {
    ranks.set_patience(milliseconds(60000));
    if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(600));
    ranks.barrier("x");
    return std::string("done");
  });
  EXPECT_EQ(texts, (Texts{"done", "done"}));
}

// In simulated time.
TEST(ThreadGroupTest, ASilentRankExceedsTheLimitAtEachCollective) {
  for (int64_t at = 0; at < std::ssize(kNames); ++at) {
    ThreadGroupOptions options{5, 1, at, milliseconds(1'000'000)};
    options.silence = 0.9;
    EXPECT_EQ(run_thread_ranks(3, options, all_of_x), (Texts{"all", "all", "all"})) << at;
    options.silence = 1.1;
    const Texts texts = run_thread_ranks(3, options, all_of_x);
    for (const int rank : {0, 2}) {
      EXPECT_EQ(texts[static_cast<size_t>(rank)],
                cat("rank ", rank, " of 3: ", kNames[static_cast<size_t>(at)],
                    " of x: no answer from rank 1 within 1000 s"));
    }
  }
}

// Ranks run one at a time, so the log needs no lock.
TEST(ThreadGroupTest, TheSeedGivesTheOrder) {
  const auto log_of = [](uint64_t seed) {
    std::vector<int> log;
    run_thread_ranks(3, {.seed = seed, .eager = seed % 2 == 0}, [&](Communicator& ranks) {
      for (int i = 0; i < 20; ++i) {
        ranks.broadcast(&i, sizeof i, i % 3, "x", {});
        log.push_back(ranks.rank());
      }
      return std::string();
    });
    return log;
  };
  for (const uint64_t seed : {1, 2, 3, 4}) {
    const std::vector<int> log = log_of(seed);
    EXPECT_EQ(log.size(), 60u);
    EXPECT_EQ(log_of(seed), log);
    EXPECT_NE(log_of(seed + 2), log);
  }
}

// The root of a broadcast needs nothing from the others, nor a rank without a slice.
TEST(ThreadGroupTest, AnEagerRankGoesOnWithWhatItHas) {
  for (const uint64_t seed : {0, 1, 2}) {
    std::string last;
    const auto work = [&](Communicator& ranks) {
      std::vector<float> data(64, 1.0f), received(128);
      if (ranks.rank() == 1) return std::string("gone");
      ranks.broadcast(data.data(), 256, 0, "x", {});
      last = "broadcast";
      ranks.gather(data.data(), RankSlices(64, 2), 4, "x", {});
      last = "gather";
      ranks.exchange(received.data(), data.data(), RankSlices(64, 2), "x", {});
      return std::string("all");
    };
    EXPECT_EQ(run_thread_ranks(2, {.seed = seed, .eager = true}, work),
              (Texts{"rank 0 of 2: exchange of x: rank 1 is gone", "gone"}));
    EXPECT_EQ(last, "gather");
  }
}

TEST(ThreadGroupTest, ARankThatEndsIsGone) {
  const Texts texts = run_thread_ranks(2, {}, [](Communicator& ranks) {
    ranks.barrier("the first");
    if (ranks.rank() == 0) ranks.barrier("the second");
    return std::string("ended");
  });
  EXPECT_EQ(texts, (Texts{"rank 0 of 2: barrier of the second: rank 1 is gone", "ended"}));
}

TEST(ThreadGroupTest, ARankThatHangsExceedsTheLimit) {
  for (const uint64_t seed : {0, 1, 2}) {
    auto ranks = thread_group(3, {seed, -1, 0, milliseconds(100)});
    const auto begin = Clock::now();
    std::vector<std::string> texts(3);
    std::vector<std::thread> threads;
    for (const size_t i : {0, 2}) {
      threads.emplace_back([&, i] {
        try {
          ranks[i]->barrier("x");
        } catch (const CommunicationError& error) {
          texts[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // With a seed, a rank may still wait for its turn, so it has not arrived either.
    EXPECT_NE(texts[0].find("rank 0 of 3: barrier of x: no answer from rank "), std::string::npos);
    if (seed == 0) {
      EXPECT_EQ(texts[2], "rank 2 of 3: barrier of x: no answer from rank 1 within 100 ms");
    }
    EXPECT_LT(Clock::now() - begin, milliseconds(5000));
    expect_error([&] { ranks[1]->barrier("y"); }, {"rank 1 of 3: barrier of y: no answer from"});
  }
}

TEST(ThreadGroupTest, AbortEndsPendingCollectivesAtOnce) {
  auto ranks = thread_group(2, {0, -1, 0, milliseconds(60000)});
  const auto begin = Clock::now();
  std::thread other([&] {
    expect_error([&] { ranks[0]->barrier("x"); },
                 {"rank 0 of 2: barrier of x: rank 1 of 2 has failed: the test ends"});
    expect_error([&] { ranks[0]->barrier("y"); },
                 {"rank 0 of 2: barrier of y: rank 1 of 2 has failed: the test ends"});
  });
  std::this_thread::sleep_for(milliseconds(50));
  ranks[1]->abort("the test ends");
  other.join();
  expect_error([&] { ranks[1]->barrier("x"); }, {"rank 1 of 2: barrier of x: aborted"});
  EXPECT_LT(Clock::now() - begin, milliseconds(10000));
}

TEST(ThreadGroupTest, AbortOfAPendingRankFromAnotherThread) {
  auto ranks = thread_group(2, {0, -1, 0, milliseconds(60000)});
  std::thread other([&] {
    expect_error([&] { ranks[0]->barrier("x"); }, {"rank 0 of 2: barrier of x: aborted"});
  });
  std::this_thread::sleep_for(milliseconds(50));
  ranks[0]->abort("the test ends");
  other.join();
}

// The calls of two ranks, and their names in the message.
TEST(ThreadGroupTest, DifferentCallsAreNamedOnBothRanks) {
  const RankSlices slices(100, 2), fewer(99, 2);
  using Call = std::function<void(Communicator&, float*)>;
  struct Case {
    Call first, second;
    std::string text;
  };
  const Call gather = [&](Communicator& r, float* d) { r.gather(d, slices, 4, "x", {}); };
  const Case cases[] = {
      {gather, [&](Communicator& r, float* d) { r.gather(d, fewer, 4, "x", {}); },
       "rank 0 calls gather of x, 100 x 4 bytes; rank 1 calls gather of x, 99 x 4 bytes"},
      {gather, [&](Communicator& r, float* d) { r.gather(d, slices, 2, "x", {}); },
       "rank 0 calls gather of x, 100 x 4 bytes; rank 1 calls gather of x, 100 x 2 bytes"},
      {gather, [&](Communicator& r, float* d) { r.gather(d, slices, 4, "y", {}); },
       "rank 0 calls gather of x, 100 x 4 bytes; rank 1 calls gather of y, 100 x 4 bytes"},
      {gather, [&](Communicator& r, float* d) { r.all_reduce(d, 100, "x", {}); },
       "rank 0 calls gather of x, 100 x 4 bytes; rank 1 calls all_reduce of x, 100 x 4 bytes"},
      {[&](Communicator& r, float* d) { r.broadcast(d, 8, 0, "x", {}); },
       [&](Communicator& r, float* d) { r.broadcast(d, 8, 1, "x", {}); },
       "rank 0 calls broadcast of x, 8 x 1 bytes from rank 0; "
       "rank 1 calls broadcast of x, 8 x 1 bytes from rank 1"},
      {gather, [&](Communicator& r, float*) { r.barrier("x"); },
       "rank 0 calls gather of x, 100 x 4 bytes; rank 1 calls barrier of x"},
  };
  for (const Case& test : cases) {
    const Texts texts = run_thread_ranks(2, {}, [&](Communicator& ranks) {
      std::vector<float> data(256);
      (ranks.rank() == 0 ? test.first : test.second)(ranks, data.data());
      return std::string("no error");
    });
    for (const std::string& text : texts)
      EXPECT_NE(text.find(test.text), std::string::npos) << text;
  }
}

TEST(ThreadGroupTest, WrongArgumentsThrow) {
  expect_error([] { thread_group(0); }, {"thread group: 0 ranks, expected at least 1"});
  const auto ranks = thread_group(1);
  float x = 0;
  expect_error([&] { ranks[0]->broadcast(&x, 4, 1, "x", {}); },
               {"broadcast of x: root is 1, expected a rank below 1"});
  EXPECT_EQ(ranks[0]->engine(), "threads");
}

}  // namespace
}  // namespace quern
