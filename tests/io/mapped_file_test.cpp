#include "io/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(MappedFile, SeesTheBytesAndMoves) {
  const TemporaryFolder folder;
  MappedFile file = MappedFile::open(write_file(folder / "a", "quern"));
  MappedFile moved = std::move(file);
  EXPECT_TRUE(file.bytes().empty());  // NOLINT: moved from on purpose
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(moved.bytes()[0], std::byte{'q'});
  moved = MappedFile::open(write_file(folder / "empty", ""));
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(MappedFile, NamesWhatCannotBeOpened) {
  const TemporaryFolder folder;
  expect_error([&] { MappedFile::open(folder / "missing"); },
               {(folder / "missing").string(), "No such file"});
  expect_error([&] { MappedFile::open(folder.path()); },
               {folder.path().string(), "is not a regular file"});
}

TEST(MappedFile, DoesNotWaitForAWriter) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_error([&] { MappedFile::open(folder / "fifo"); }, {"fifo", "is not a regular file"});
}

// A change of the file itself is seen by its length or its time to the nanosecond; another file of
// its name does not touch the mapping.
TEST(MappedFile, SeesThatTheFileHasChanged) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a", "quern");
  const auto set_time = [&](int64_t seconds, int64_t nanoseconds) {
    const timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  set_time(1000, 5);
  const MappedFile file = MappedFile::open(path);
  file.check_unchanged();
  set_time(1000, 6);
  expect_error([&] { file.check_unchanged(); }, {path, ": was written to while it is in use"});
  set_time(1001, 5);
  expect_error([&] { file.check_unchanged(); }, {path, ": was written to while it is in use"});
  set_time(1000, 5);
  file.check_unchanged();
  std::filesystem::resize_file(path, 4);
  expect_error([&] { file.check_unchanged(); },
               {path, ": has 4 bytes now, expected the 5 that it had"});
  std::filesystem::remove(path);
  file.check_unchanged();
  const std::string other = write_file(folder / "b", "other file");
  std::filesystem::rename(other, path);
  file.check_unchanged();
}

}  // namespace
}  // namespace quern
