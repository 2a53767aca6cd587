#include "io/mapped_file.h"

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

}  // namespace
}  // namespace quern
