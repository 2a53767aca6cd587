#include "io/folder.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "io/input_files.h"
#include "support/faults.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST(Folder, EntriesAreSorted) {
  const TemporaryFolder folder;
  std::vector<fs::path> expected;
  for (const char* name : {"c", "a", "b"}) write_file(folder / name, name);
  for (const char* name : {"a", "b", "c"}) expected.push_back(folder / name);
  const std::vector<fs::directory_entry> found = entries_of(folder.path());
  EXPECT_EQ(std::vector<fs::path>(found.begin(), found.end()), expected);
}

TEST(Folder, ErrorsNameIt) {
  const TemporaryFolder folder;
  const fs::path file = write_file(folder / "a", "text");
  expect_error([&] { create_folder(file / "b"); }, {"a/b: cannot be created: Not a directory"});
  expect_error([&] { entries_of(file); }, {"a: folder cannot be read: Not a directory"});
  EXPECT_NO_THROW(create_folder(folder.path())) << "it is there";
  EXPECT_NO_THROW(remove_tree(folder / "no"));
  std::error_code error;
  EXPECT_TRUE(entries_of(folder / "no", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_EQ(entries_of(folder.path(), error).size(), 1u);
  EXPECT_FALSE(error);
}

TEST(Folder, AHalfReadFolderIsAnError) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "c"}) write_file(folder / name, name);
  int calls = 0;
  const FaultyCalls faults([&](const std::string& call, const std::string&) {
    return call == "readdir" && ++calls == 2 ? EIO : 0;
  });
  std::error_code error;
  EXPECT_TRUE(entries_of(folder.path(), error).empty());
  EXPECT_EQ(error, std::errc::io_error);
}

// The first of each call with each path is interrupted.
TEST(Folder, InterruptedCallsAreRepeated) {
  const TemporaryFolder folder;
  const fs::path file = write_file(folder / "read" / "below" / "file", "text");
  std::set<std::string> names, before;
  const FaultyCalls interrupted([&](const std::string& call, const std::string& path) {
    if (call == "close") return 0;
    names.insert(call);
    return before.insert(cat(call, " ", path)).second ? EINTR : 0;
  });
  create_folder(folder / "made" / "below");
  EXPECT_TRUE(fs::is_directory(folder / "made" / "below"));
  EXPECT_EQ(entries_of(folder.path()).size(), 2u);
  EXPECT_EQ(files_below(folder.path()), std::vector{file});
  remove_tree(folder / "read");
  EXPECT_FALSE(fs::exists(folder / "read"));
  for (const char* name : {"mkdir", "openat", "readdir", "unlinkat"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace quern
