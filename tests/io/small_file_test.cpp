#include "io/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>

#include "support/faults.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST(SmallFile, AbsentOrRead) {
  const TemporaryFolder folder;
  write_file(folder / "a", "text");
  EXPECT_EQ(read_if_there(folder / "a"), "text");
  EXPECT_EQ(read_if_there(folder / "a", 2), "te");
  EXPECT_EQ(read_if_there(folder / "b"), std::nullopt);
  EXPECT_EQ(read_if_there(folder / "a" / "b"), std::nullopt);
  EXPECT_TRUE(is_there(folder / "a"));
  EXPECT_TRUE(is_there(folder.path()));
  EXPECT_FALSE(is_there(folder / "b"));
}

// A file is read in blocks of 65536 bytes.
TEST(SmallFile, EndsAtTheLimitInAnyBlock) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 150'000; ++i) text += std::to_string(i) + " ";
  write_file(folder / "a", text);
  EXPECT_EQ(read_if_there(folder / "a"), text);
  for (const size_t most : {0u, 1u, 65'535u, 65'536u, 65'537u, 100'000u, 131'072u, 140'000u}) {
    EXPECT_EQ(read_if_there(folder / "a", most), text.substr(0, most)) << most;
  }
  EXPECT_EQ(read_if_there(folder / "a", text.size() + 1), text);
}

TEST(SmallFile, UnreadableIsAnError) {
  const TemporaryFolder folder;
  const fs::path loop = folder / "loop", pipe = folder / "pipe";
  fs::create_symlink("loop", loop);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { read_if_there(loop); }, {loop.string(), "Too many levels"});
  expect_error([&] { is_there(loop); }, {loop.string(), "Too many levels"});
  expect_error([&] { read_if_there(pipe); }, {pipe.string(), "not a regular file"});
  expect_error([&] { read_if_there(folder.path()); }, {folder.path().string(), "not a regular"});
}

TEST(SmallFile, InterruptedCallsAreRepeated) {
  const TemporaryFolder folder;
  write_file(folder / "a", "text");
  std::map<std::string, int> calls;
  const FaultyCalls interrupted([&](const std::string& call, const std::string&) {
    return (call == "open" || call == "read") && ++calls[call] == 1 ? EINTR : 0;
  });
  EXPECT_EQ(read_if_there(folder / "a"), "text");
  EXPECT_EQ(calls, (std::map<std::string, int>{{"open", 2}, {"read", 3}}));
}

}  // namespace
}  // namespace quern
