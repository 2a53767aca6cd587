#include "io/atomic_file.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST(AtomicFolder, IsThereOnlyAfterCommit) {
  const TemporaryFolder folder;
  write_file(folder / "new.quern.tmp" / "half", "left by an interrupted program");
  {
    AtomicFolder staging(folder / "new/", "test");
    EXPECT_TRUE(fs::is_empty(staging.temporary()));
    write_file(staging.temporary() / "a", "text");
    EXPECT_FALSE(fs::exists(folder / "new"));
    staging.commit();
    EXPECT_EQ(read_file(folder / "new" / "a"), "text");
  }
  EXPECT_FALSE(fs::exists(folder / "new.quern.tmp"));
  expect_error([&] { AtomicFolder(folder / "new", "test"); }, {"test: ", "new exists already"});
  { AtomicFolder unfinished(folder / "other", "test"); }
  EXPECT_FALSE(fs::exists(folder / "other"));
  EXPECT_FALSE(fs::exists(folder / "other.quern.tmp"));
}

TEST(AtomicFolder, AUsersOwnTemporaryFolderStays) {
  const TemporaryFolder folder;
  write_file(folder / "new.tmp" / "mine", "precious");
  { AtomicFolder unfinished(folder / "new", "test"); }
  AtomicFolder(folder / "new", "test").commit();
  EXPECT_EQ(read_file(folder / "new.tmp" / "mine"), "precious");
}

// Somebody else's folder that has come in the meantime is neither replaced nor mixed with.
TEST(AtomicFolder, ReplacesNothing) {
  const TemporaryFolder folder;
  AtomicFolder staging(folder / "new", "test");
  write_file(staging.temporary() / "a", "text");
  write_file(folder / "new" / "mine", "precious");
  expect_error([&] { staging.commit(); }, {"new: cannot be put in place", "Directory not empty"});
  EXPECT_EQ(read_file(folder / "new" / "mine"), "precious");
  EXPECT_FALSE(fs::exists(folder / "new" / "a"));
  EXPECT_EQ(read_file(staging.temporary() / "a"), "text");
}

// A second process would remove the files of the first one.
TEST(AtomicFolder, OnlyOneFillsIt) {
  const TemporaryFolder folder;
  AtomicFolder first(folder / "new", "test");
  write_file(first.temporary() / "a", "text");
  expect_error([&] { AtomicFolder(folder / "new", "test"); },
               {"new.quern.tmp: another process is filling it"});
  EXPECT_EQ(read_file(first.temporary() / "a"), "text");
  first.commit();
  EXPECT_EQ(read_file(folder / "new" / "a"), "text");
}

}  // namespace
}  // namespace quern
