#include "io/file_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// Numbers of the open descriptors with what they are open for.
std::set<std::string> open_files() {
  std::set<std::string> all;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (!gone && target != "/proc/" + std::to_string(::getpid()) + "/fd") {
      all.insert(entry.path().filename().string() + " " + target.string());
    }
  }
  return all;
}

TEST(FileLock, IsTakenOnceUntilItsEnd) {
  const TemporaryFolder folder;
  const std::string file = folder / "lock", inner = folder / "a" / "b";
  const auto take_file = [&] { return FileLock(file, "the file is in use"); };
  const auto take_folder = [&] { return FileLock::of_folder(inner, "the folder is in use"); };
  const std::set<std::string> before = open_files();
  {
    const FileLock first = take_file(), second = take_folder();
    const std::set<std::string> locked = open_files();
    EXPECT_EQ(locked.size(), before.size() + 2);
    EXPECT_TRUE(fs::is_directory(inner));
    expect_error([&] { take_file(); }, {"the file is in use"});
    expect_error([&] { take_folder(); }, {"the folder is in use"});
    EXPECT_EQ(open_files(), locked);
  }
  EXPECT_EQ(open_files(), before);
  take_file();
  take_folder();
  EXPECT_EQ(open_files(), before);
}

TEST(FileLock, GoesAlongWhenItIsMoved) {
  const TemporaryFolder folder;
  const std::set<std::string> before = open_files();
  {
    FileLock first(folder / "a", "busy"), second(folder / "b", "busy");
    FileLock moved(std::move(first));
    expect_error([&] { FileLock(folder / "a", "busy"); }, {"busy"});
    second = std::move(moved);
    expect_error([&] { FileLock(folder / "a", "busy"); }, {"busy"});
  }
  EXPECT_EQ(open_files(), before);
  FileLock(folder / "a", "busy");
  FileLock(folder / "b", "busy");
}

TEST(FileLock, NamesWhatCannotBeOpened) {
  const TemporaryFolder folder;
  const std::string file = write_file(folder / "file", "text");
  const std::set<std::string> before = open_files();
  expect_error([&] { FileLock(folder.path(), "busy"); },
               {folder.path().string(), "cannot be opened"});
  expect_error([&] { FileLock::of_folder(file + "/a", "busy"); }, {file, "cannot be created"});
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace quern
