#include "io/atomic_file.h"

#include <gtest/gtest.h>

#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST(AtomicFile, IsThereOnlyAfterCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("hello ");
    file.write("world");
    EXPECT_FALSE(fs::exists(folder / "a"));
    const FileDigest digest = file.commit();
    EXPECT_EQ(digest, digest_of(std::as_bytes(std::span(std::string_view("hello world")))));
  }
  EXPECT_EQ(read_file(folder / "a"), "hello world");
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
}

TEST(AtomicFile, WithoutCommitTheOldContentStays) {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  { AtomicFile(folder / "a").write("new"); }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST(AtomicFile, AFullDiskIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder / "a.tmp");  // every write: ENOSPC
  expect_error([&] { write_file_atomically(folder / "a", "text"); },
               {(folder / "a").string(), "No space left on device"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(AtomicFile, AShortWriteIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(1000);  // the kernel writes 1000 bytes, then refuses
  expect_error([&] { write_file_atomically(folder / "a", std::string(4096, 'x')); },
               {(folder / "a").string(), "File too large"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(AtomicFile, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  expect_error([&] { write_file_atomically(folder / "no" / "a", "text"); },
               {(folder / "no" / "a").string(), "No such file or directory"});
  expect_error([&] { sync_directory(folder / "no"); }, {(folder / "no").string()});
}

TEST(ReplaceDirectory, TakesThePlaceOfTheOldOne) {
  const TemporaryFolder folder;
  write_file(folder / "new/a", "new");
  replace_directory(folder / "new", folder / "place");
  EXPECT_EQ(read_file(folder / "place/a"), "new");
  write_file(folder / "newer/b", "newer");
  replace_directory(folder / "newer", folder / "place");
  EXPECT_EQ(read_file(folder / "place/b"), "newer");
  EXPECT_FALSE(fs::exists(folder / "place/a"));
  EXPECT_FALSE(fs::exists(folder / "newer"));
}

}  // namespace
}  // namespace quern
