#include "dist/roll_call.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>

#include "dist/communicator.h"
#include "dist/host_name.h"
#include "support/files.h"
#include "support/free_port.h"

namespace quern {
namespace {

using namespace std::chrono_literals;
using namespace testing_support;

constexpr char kIdle[] = "";  // does not answer

// The answer to each rank that waits in the call of its number; "" for a rank that does not.
std::vector<std::string> answers(const std::vector<std::string>& calls,
                                 const std::string& address = "") {
  const TemporaryFolder folder;
  const auto size = static_cast<int>(calls.size());
  std::vector<std::string> told(calls.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      const std::shared_ptr<Store> store =
          open_store({.address = address.empty() ? "file:" + folder.path().string() : address,
                      .rank = rank,
                      .size = size,
                      .limit = 5s});
      const RollCall roll(store, rank, size, "group");
      if (calls[at] != kIdle) told[at] = roll.answer(calls[at], 500ms);
      std::this_thread::sleep_for(1s);  // the first rank serves the store
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

std::string named(int rank, int size) {
  return cat("rank ", rank, " of ", size, " on ", host_name());
}

TEST(RollCall, NamesWhoDoesNotAnswer) {
  const std::vector<std::string> told = answers({"the loss", "the loss", kIdle});
  const std::string expected = named(2, 3) + " does not wait in it, or came later";
  EXPECT_EQ(told, (std::vector<std::string>{expected, expected, kIdle}));
}

// The ranks behind the absent one have no time left to be asked, and are not blamed.
TEST(RollCall, NamesOnlyWhoDoesNotAnswerOverTcp) {
  const std::string address = cat("tcp:127.0.0.1:", free_port());
  const std::vector<std::string> told =
      answers({"the loss", kIdle, "the loss", "the loss"}, address);
  const std::string expected = named(1, 4) + " does not wait in it, or came later";
  EXPECT_EQ(told, (std::vector<std::string>{expected, kIdle, expected, expected}));
}

TEST(RollCall, NamesWhoWaitsElsewhere) {
  const std::vector<std::string> told = answers({"the loss", "the weights"});
  EXPECT_EQ(told[0], named(1, 2) + " waits in the weights");
  EXPECT_EQ(told[1], named(0, 2) + " waits in the loss");
}

TEST(RollCall, NamesSeveralButNotAHundred) {
  std::vector<std::string> calls(9, kIdle);
  calls[0] = "the loss";
  const std::string told = answers(calls)[0];
  EXPECT_TRUE(told.starts_with(named(1, 9))) << told;
  EXPECT_NE(told.find(named(4, 9)), std::string::npos) << told;
  EXPECT_EQ(told.find(named(5, 9)), std::string::npos) << told;
  EXPECT_TRUE(told.ends_with("; and 4 more")) << told;
}

TEST(RollCall, NobodyIsToBlameWhereAllWait) {
  for (const std::string& told : answers({"the loss", "the loss"})) {
    EXPECT_EQ(told, "every rank waits in it: a GPU or a link hangs");
  }
}

// Rank 0, which serves the store, is gone.
struct LostStore : Store {
  LostStore() : Store("tcp:first:29500", 1s) {}
  void put(const std::string& key, const std::string& /*value*/,
           std::chrono::milliseconds /*limit*/) override {
    if (key.starts_with("late/") || key.starts_with("failed/"))
      throw CommunicationError(address() + ": rank 0's store is gone");
  }
  std::optional<std::string> find(const std::string& key,
                                  std::chrono::milliseconds /*limit*/) override {
    if (key.starts_with("failed/"))
      throw CommunicationError(address() + ": rank 0's store is gone");
    return "first\nsecond";
  }
};

TEST(RollCall, SaysThatTheStoreIsGone) {
  const RollCall roll(std::make_shared<LostStore>(), 1, 2, "group");
  EXPECT_EQ(
      roll.answer("the loss", 100ms),
      "another rank is gone, hangs, or called something else; tcp:first:29500: rank 0's store "
      "is gone");
}

// The first of two errors reaches the other ranks: over a folder; over one that was removed when
// all had joined, and that ends with the rank that makes it again; over TCP, where it ends with
// rank 0.
TEST(RollCall, TellsTheFirstError) {
  struct Case {
    bool tcp, own_folder;
    int failing;
  };
  for (const Case& c :
       {Case{false, false, 0}, {false, true, 1}, {true, false, 0}, {true, false, 1}}) {
    const TemporaryFolder folder;
    const std::string path = folder / "store";
    const std::string address = c.tcp ? cat("tcp:localhost:", free_port()) : "file:" + path;
    std::vector<std::string> told(3);
    std::vector<std::thread> threads;
    std::barrier joined(3);
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const std::shared_ptr<Store> store = open_store(
            {.address = address, .rank = rank, .size = 3, .limit = 5s, .own_folder = c.own_folder});
        const RollCall roll(store, rank, 3, "group");
        joined.arrive_and_wait();
        if (rank == 0 && c.own_folder) std::filesystem::remove_all(path);
        joined.arrive_and_wait();
        if (rank == c.failing) {
          roll.report_failure("no memory\nlines below", 5s);
        } else {
          told[static_cast<size_t>(rank)] = roll.reported_failure(5s, 5s);
          if (!c.tcp && !c.own_folder) roll.report_failure("the other is gone", 100ms);
        }
        EXPECT_EQ(store->ends_here(), c.tcp ? rank == 0 : c.own_folder && rank == c.failing);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == c.failing) continue;
      EXPECT_EQ(told[static_cast<size_t>(rank)], named(c.failing, 3) + " has failed: no memory");
    }
  }
}

TEST(RollCall, TellsNoErrorWhereThereIsNone) {
  const TemporaryFolder folder;
  const std::shared_ptr<Store> store = open_store({.address = "file:" + folder.path().string()});
  EXPECT_EQ(RollCall(store, 0, 1, "group").reported_failure(50ms, 50ms), "");
  const RollCall lost(std::make_shared<LostStore>(), 1, 2, "group");
  EXPECT_EQ(lost.reported_failure(50ms, 50ms), "");
  EXPECT_NO_THROW(lost.report_failure("an error", 50ms));
}

// A store's folder that was removed once all had joined is made again for the answers.
TEST(RollCall, TheFolderMayBeGone) {
  const TemporaryFolder folder;
  const std::string path = folder / "store";
  const std::shared_ptr<Store> store =
      open_store({.address = "file:" + path, .size = 1, .limit = 1s, .own_folder = true});
  const RollCall roll(store, 0, 1, "group");
  std::filesystem::remove_all(path);
  EXPECT_EQ(roll.answer("the loss", 100ms), "every rank waits in it: a GPU or a link hangs");
}

}  // namespace
}  // namespace quern
