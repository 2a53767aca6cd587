#include "dist/gloo.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <regex>
#include <thread>

#include "dist/host_name.h"
#include "support/collectives.h"
#include "support/files.h"
#include "support/forked_ranks.h"
#include "support/sanitized.h"

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
    group_folder_ = folder_ / cat("ranks", ++groups_);
    return [=, folder = group_folder_](int rank) {
      const auto store = open_store({"file:" + folder.string(), rank, size, milliseconds(10000)});
      const auto group = gloo_group(*store, rank, size, limit);
      write_file(folder / cat("ready", rank), "");
      return work(*group);
    };
  }

  // Waits until the ranks of the last group are at work.
  void await_work(int size) const {
    for (int rank = 0; rank < size; ++rank) {
      while (!std::filesystem::exists(group_folder_ / cat("ready", rank))) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    std::this_thread::sleep_for(milliseconds(50));
  }

  TemporaryFolder folder_;
  std::filesystem::path group_folder_;
  int groups_ = 0;
};

std::string failed(int rank, int size, const std::string& rest) {
  return cat("CommunicationError: ", rank_text(rank, size), ": ", rest);
}
// The first line, and the others.
std::pair<std::string, std::string> cut(const std::string& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  return {text.substr(0, end), text.substr(end)};
}

std::string on_host(int rank) {
  return cat("rank ", rank, " on ", host_name());
}
std::string gone(int rank) {
  return on_host(rank) + " is gone: killed, ended or failed";
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
      if (error.empty() && ranks.size() == 3) {
        error = CollectiveCheck(ranks, 300001, seed).run_one_of_each();
      }
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

// Collectives that a rank repeats until another rank makes one fail.
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
      await_work(3);
      const auto begin = Clock::now();
      ranks.kill(1);
      EXPECT_EQ(ranks.text(1), "signal 9");
      for (const int rank : {0, 2}) {
        expect_gone(ranks.text(rank), rank, 3, name, "rank");
      }
      EXPECT_LT(Clock::now() - begin, milliseconds(kSanitized ? 10000 : 4000)) << name;
    }
  }
}

TEST_F(GlooTest, OtherRanksFailWithinTheLimitWhenOneIsStopped) {
  for (const std::string& name : kNames) {
    const auto work = in_group(3, milliseconds(1000),
                               [=](Communicator& ranks) { return repeat(ranks, name, 100000); });
    ForkedRanks ranks(3, work);
    await_work(3);
    const auto begin = Clock::now();
    ranks.send(1, SIGSTOP);
    for (const int rank : {0, 2}) {
      const auto [message, collectives] = cut(ranks.text(rank));
      EXPECT_EQ(message, failed(rank, 3,
                                cat(name, " of x: no answer within 1 s from ", on_host(1),
                                    ": it hangs or cannot be reached")));
      const std::regex row(cat("\n  #[0-9]+ ", name, " of x, [0-9]+ bytes, [0-9]+\\.[0-9] s ago: ",
                               "(running|complete)"));
      const auto rows =
          std::distance(std::sregex_iterator(collectives.begin(), collectives.end(), row), {});
      EXPECT_GE(rows, 2) << collectives;
      EXPECT_EQ(collectives.find("running"), collectives.size() - 7) << "not the last one alone";
    }
    EXPECT_LT(Clock::now() - begin, milliseconds(kSanitized ? 10000 : 4000)) << name;
  }
}

// Others wait for the work of one: as long as it answers.
TEST_F(GlooTest, APatientRankWaitsForOneThatAnswers) {
  const auto work = in_group(2, milliseconds(1000), [](Communicator& ranks) {
    if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
    ranks.set_patience(milliseconds(60000));
    ranks.barrier("x");
    ranks.set_patience(milliseconds(0));
    return std::string("no error");
  });
  ForkedRanks ranks(2, work);
  for (const int rank : {0, 1}) EXPECT_EQ(ranks.text(rank), "no error");
}

TEST_F(GlooTest, APatientRankNamesOneThatDoesNotAnswer) {
  const auto work = in_group(2, milliseconds(500), [](Communicator& ranks) {
    ranks.set_patience(milliseconds(60000));
    if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(60000));
    return repeat(ranks, "barrier", 100000);
  });
  ForkedRanks ranks(2, work);
  await_work(2);
  std::this_thread::sleep_for(milliseconds(700));  // it has answered once
  const auto begin = Clock::now();
  ranks.send(1, SIGSTOP);
  EXPECT_EQ(cut(ranks.text(0)).first, failed(0, 2,
                                             cat("barrier of x: no answer within 500 ms from ",
                                                 on_host(1), ": it hangs or cannot be reached")));
  EXPECT_LT(Clock::now() - begin, milliseconds(kSanitized ? 10000 : 4000));
}

// A rank whose threads answer, but which does not come.
TEST_F(GlooTest, ARankThatIsElsewhereIsNamed) {
  const auto work = in_group(3, milliseconds(1000), [](Communicator& ranks) {
    const auto begin = Clock::now();
    if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(1800));
    std::string text = "no error";
    try {
      ranks.barrier("x");
    } catch (const CommunicationError& error) {
      text = error.what();
    }
    return Clock::now() - begin < milliseconds(2500) ? text : "late: " + text;
  });
  ForkedRanks ranks(3, work);
  for (const int rank : {0, 1, 2}) {
    const auto [message, collectives] = cut(ranks.text(rank));
    EXPECT_EQ(message, cat(rank_text(rank, 3), ": barrier of x: not complete within 1 s: ",
                           on_host(1), " is in no collective"));
    EXPECT_NE(collectives.find(" gather of the start, "), std::string::npos) << collectives;
    const bool came =
        collectives.find(" s ago: complete\n  #2 barrier of x, 0 bytes, ") != std::string::npos;
    EXPECT_EQ(came, rank != 1) << collectives;  // when the others gave up
  }
}

TEST_F(GlooTest, ASlowRankThatComesInTimeIsNoError) {
  const auto work = in_group(2, milliseconds(3000), [](Communicator& ranks) {
    if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(2300));  // it is asked before
    for (int i = 0; i < 3; ++i) ranks.barrier("x");
    return std::string("done");
  });
  ForkedRanks ranks(2, work);
  for (const int rank : {0, 1}) EXPECT_EQ(ranks.text(rank), "done");
}

TEST_F(GlooTest, AFailedGroupStaysFailed) {
  const auto work = in_group(2, milliseconds(10000), [](Communicator& ranks) {
    if (ranks.rank() == 1) return std::string("left");
    std::string text;
    for (int i = 0; i < 2; ++i) {
      try {
        ranks.barrier(cat("barrier ", i).c_str());
      } catch (const CommunicationError& error) {
        text += error.what();
      }
    }
    return text;
  });
  ForkedRanks ranks(2, work);
  const std::string reason = ": " + gone(1);
  EXPECT_EQ(ranks.text(0), cat(rank_text(0, 2), ": barrier of barrier 0", reason, rank_text(0, 2),
                               ": barrier of barrier 1", reason));
  EXPECT_EQ(ranks.text(1), "left");
}

// Ranks leave a group at different times after its last collective, which is complete on each.
TEST_F(GlooTest, RanksLeaveWithoutAnError) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const auto work = in_group(3, milliseconds(10000), [=](Communicator& ranks) {
      const int64_t count = seed % 2 ? 500000 : 10;
      std::vector<float> data(static_cast<size_t>(count), 1.0f);
      if (seed % 4 < 2) {
        ranks.all_reduce(data.data(), count, "x", {});
      } else {
        ranks.broadcast(data.data(), count * 4, static_cast<int>(seed % 3), "x", {});
      }
      const uint32_t pause =
          kernels::philox_integer(seed, static_cast<uint64_t>(ranks.rank()), 3000);
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      return cat(data.back());
    });
    ForkedRanks ranks(3, work);
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(ranks.text(rank), seed % 4 < 2 ? "3" : "1") << seed;
    }
  }
}

// Also while the ranks connect.
TEST_F(GlooTest, AKillAtAnyTimeEndsTheOthersWithinTheLimit) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const milliseconds limit(1500);
    const std::string name = kNames[seed % kNames.size()];
    const auto address = "file:" + (folder_ / cat("kill", seed)).string();
    ForkedRanks ranks(3, [=](int rank) {
      const auto store = open_store({address, rank, 3, limit});
      return repeat(*gloo_group(*store, rank, 3, limit), name, seed % 2 ? 200000 : 70);
    });
    std::this_thread::sleep_for(
        std::chrono::microseconds(kernels::philox_integer(seed, 0, 150000)));
    const int killed = static_cast<int>(seed / 2 % 3);
    const auto begin = Clock::now();
    ranks.kill(killed);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string text = ranks.text(rank);
      if (rank == killed) {
        EXPECT_EQ(text, "signal 9");
      } else {
        EXPECT_TRUE(text.starts_with(failed(rank, 3, ""))) << text;
      }
    }
    // The store, the connection and the first barrier each have the limit.
    EXPECT_LT(Clock::now() - begin, 3 * limit + milliseconds(1000)) << seed;
  }
}

TEST_F(GlooTest, ARankThatNeverStartsExceedsTheLimit) {
  const std::string address = "file:" + folder_.path().string();
  const auto store = open_store({address, 0, 2, milliseconds(200)});
  expect_error(
      [&] { gloo_group(*store, 0, 2, milliseconds(200)); },
      {rank_text(0, 2) + ": " + address + ": get of 'gloo/host/1': no rank set it within 200 ms"});
}

TEST_F(GlooTest, DifferentCallsExceedTheLimit) {
  using Call = std::function<void(Communicator&, float*)>;
  const Call calls[] = {
      [](Communicator& r, float* x) { r.all_reduce(x, 100, "x", {}); },
      [](Communicator& r, float* x) { r.all_reduce(x, 1000, "x", {}); },
      [](Communicator& r, float* x) { r.all_reduce(x, 100, "y", {}); },
      [](Communicator& r, float* x) { r.gather(x, RankSlices(100, 2), 4, "x", {}); },
      [](Communicator& r, float* x) { r.gather(x, RankSlices(100, 2), 2, "x", {}); },
      [](Communicator& r, float* x) { r.broadcast(x, 100, 0, "x", {}); },
      [](Communicator& r, float* x) { r.broadcast(x, 200, 0, "x", {}); },
      [](Communicator& r, float*) { r.barrier("x"); },
  };
  for (size_t i = 1; i < std::size(calls); ++i) {
    for (const bool swapped : {false, true}) {
      const auto work = in_group(2, milliseconds(300), [&](Communicator& ranks) {
        std::vector<float> data(1000);
        calls[(ranks.rank() == 0) == swapped ? i : i - 1](ranks, data.data());
        ranks.barrier("the end");  // a broadcast's root may not wait
        return std::string("no error");
      });
      ForkedRanks ranks(2, work);
      for (int rank = 0; rank < 2; ++rank) {
        const std::string text = ranks.text(rank);
        EXPECT_TRUE(text.starts_with(failed(rank, 2, ""))) << text;
        // A broadcast's root goes on to the barrier, which its receivers do not come to.
        EXPECT_NE(text.find("not complete within 300 ms: "), std::string::npos) << text;
        EXPECT_NE(text.find(" is in "), std::string::npos) << text;
      }
    }
  }
}

TEST_F(GlooTest, AbortEndsPendingAndLaterCollectives) {
  const auto work = in_group(2, milliseconds(30000), [](Communicator& ranks) {
    const auto begin = Clock::now();
    std::thread aborts([&] {
      std::this_thread::sleep_for(milliseconds(200));
      if (ranks.rank() == 0) ranks.abort("the test ends");
    });
    std::vector<std::string> texts;
    for (int i = 0; i < 2; ++i) {
      try {
        if (ranks.rank() == 1) std::this_thread::sleep_for(milliseconds(1000));
        ranks.barrier("x");
      } catch (const CommunicationError& error) {
        texts.push_back(error.what());
      }
    }
    aborts.join();
    ranks.abort("the test ends");
    const bool is_soon = Clock::now() - begin < milliseconds(10000);
    return texts.size() == 2 && texts[0] == texts[1] && is_soon ? texts[0] : "not so";
  });
  ForkedRanks ranks(2, work);
  EXPECT_EQ(ranks.text(0), rank_text(0, 2) + ": barrier of x: aborted");
  EXPECT_EQ(ranks.text(1), cat(rank_text(1, 2), ": barrier of x: ", rank_text(0, 2),
                               " has failed: the test ends"));
}

// A peer is stopped in the middle of a message.
TEST_F(GlooTest, AbortEndsACollectiveWithinAMessage) {
  const auto work = in_group(2, milliseconds(50000), [](Communicator& ranks) {
    std::thread aborts([&] {
      std::this_thread::sleep_for(milliseconds(600));
      if (ranks.rank() == 0) ranks.abort("the test ends");
    });
    std::string text;
    try {
      repeat(ranks, "broadcast", 5000000);
    } catch (const CommunicationError& error) {
      text = error.what();
    }
    aborts.join();
    return text;
  });
  ForkedRanks ranks(2, work);
  await_work(2);
  ranks.send(1, SIGSTOP);
  const auto begin = Clock::now();
  EXPECT_EQ(ranks.text(0), rank_text(0, 2) + ": broadcast of x: aborted");
  EXPECT_LT(Clock::now() - begin, milliseconds(kSanitized ? 10000 : 4000));
  ranks.send(1, SIGCONT);
  EXPECT_EQ(ranks.text(1), rank_text(1, 2) + ": broadcast of x: " + gone(0));
}

TEST_F(GlooTest, RanksMeetByATcpStore) {
  // A port that was free a moment ago.
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  socklen_t size = sizeof place;
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&place), size), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&place), &size), 0);
  ::close(fd);
  const std::string address = cat("tcp:127.0.0.1:", ntohs(place.sin_port));
  ForkedRanks ranks(3, [&](int rank) {
    const milliseconds limit(10000);
    auto store = open_store({address, rank, 3, limit});
    const auto group = gloo_group(*store, rank, 3, limit);
    store.reset();  // that of rank 0 too: no rank needs it now
    return CollectiveCheck(*group, 1000, 1).run();
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.text(rank), "");
}

TEST_F(GlooTest, WrongArgumentsThrow) {
  const auto store = open_store({"file:" + folder_.path().string()});
  expect_error([&] { gloo_group(*store, 2, 2, milliseconds(100)); },
               {"Gloo: rank 2 of 2, expected a rank below the number of ranks"});
  expect_error([&] { gloo_group(*store, 0, 1, milliseconds(0)); },
               {"Gloo: the limit is 0 ms, expected more than 0"});
  const auto group = gloo_group(*store, 0, 1, milliseconds(1000));
  float x = 0;
  expect_error([&] { group->broadcast(&x, 4, 1, "x", {}); },
               {"broadcast of x: root is 1, expected a rank below 1"});
}

}  // namespace
}  // namespace quern
