#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "dist/communicator.h"
#include "dist/store.h"
#include "support/files.h"
#include "support/store_failure.h"

namespace quern {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class FileStoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> open(int rank, milliseconds limit = milliseconds(10000)) {
    return open_store({address_, rank, 2, limit});
  }

  TemporaryFolder folder_;
  const std::string address_ = "file:" + (folder_ / "a" / "store").string();
};

TEST_F(FileStoreTest, ARankReadsWhatAnotherSets) {
  const auto first = open(0), second = open(1);
  const std::string binary("\0a\xff\n", 4);
  const std::string keys[] = {"a", "A", "a/b", "a_b", "a%2fb", "..", std::string(80, '/')};
  for (const std::string& key : keys) first->set(key, key + binary);
  for (const std::string& key : keys) {
    EXPECT_EQ(second->get(key), key + binary);
    EXPECT_EQ(second->get(key), key + binary);
  }
  second->set("empty", "");
  EXPECT_EQ(first->get("empty"), "");
  const std::string large(1 << 20, 'x');
  first->set("large", large);
  EXPECT_EQ(second->get("large"), large);
}

TEST_F(FileStoreTest, GetWaits) {
  const auto first = open(0), second = open(1);
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    first->set("late", "value");
  });
  EXPECT_EQ(second->get("late"), "value");
  setter.join();
}

TEST_F(FileStoreTest, AKeyThatNoRankSetsExceedsTheLimit) {
  const auto store = open(0, milliseconds(100));
  const auto begin = Clock::now();
  expect_error([&] { store->get("a/b"); },
               {address_ + ": get of 'a/b': no rank set it within 100 ms"});
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
}

TEST_F(FileStoreTest, AReportedFailureEndsTheOthersWaits) {
  const auto first = open(0), second = open(1);
  expect_reported_failure_ends_waits(*first, *second);
}

TEST_F(FileStoreTest, AKeyKeepsItsValue) {
  const auto store = open(0);
  store->set("a", "1");
  store->set("a", "1");
  expect_error([&] { store->set("a", "2"); },
               {address_ + ": set of 'a': it has another value already. Is the folder that of "
                           "another training, or of an earlier one?"});
  EXPECT_EQ(store->get("a"), "1");
}

TEST_F(FileStoreTest, WrongSizesAndPlacesThrow) {
  const auto store = open(0);
  expect_error([&] { store->set("", "1"); }, {address_ + ": a key has 0 bytes, expected 1 to 80"});
  expect_error([&] { store->get(std::string(81, 'a')); },
               {": a key has 81 bytes, expected 1 to 80"});
  expect_error([&] { store->set("a", std::string((1 << 20) + 1, 'x')); },
               {"the value of 'a' has 1048577 bytes, expected at most 1048576"});
  const std::string file = write_file(folder_ / "file", "x").string();
  expect_error([&] { open_store({"file:" + file}); },
               {"file:" + file + ": the folder cannot be made"});
  expect_error([&] { open_store({"file:" + file + "/below"}); },
               {"/below: the folder cannot be made: Not a directory"});
  std::filesystem::create_directory(folder_ / "a" / "store" / "key_folder");
  expect_error([&] { store->get("folder"); }, {address_ + ": read of 'folder': Is a directory"});
}

TEST_F(FileStoreTest, AFolderThatDisappearsIsAnError) {
  const auto store = open(0);
  std::filesystem::remove_all(folder_ / "a");
  expect_error([&] { store->set("a", "1"); },
               {address_ + ": set of 'a': No such file or directory"});
}

TEST(StoreTest, WrongAddressesThrow) {
  for (const std::string address : {"", "file:", "folder", "redis:host:1"}) {
    expect_error([&] { open_store({address}); },
                 {"store address '" + address + "', expected file:FOLDER or tcp:HOST:PORT"});
  }
  for (const std::string address :
       {"tcp:", "tcp:host", "tcp::1", "tcp:host:", "tcp:host:0", "tcp:host:65536", "tcp:host:x",
        "tcp:host:-1", "tcp:host:123456", "tcp:a:b:1", "tcp:[]:1"}) {
    expect_error(
        [&] { open_store({address}); },
        {"store address '" + address + "', expected tcp:HOST:PORT with a port of 1 to 65535"});
  }
  expect_error(
      [] {
        open_store({"file:x", 2, 2});
      },
      {"store: rank 2 of 2, expected a rank below the number of ranks"});
}

}  // namespace
}  // namespace quern
