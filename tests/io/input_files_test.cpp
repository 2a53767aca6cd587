#include "io/input_files.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

class InputFiles : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.txt", "a/z.txt", "a/b/c.txt", "a.txt", ".hidden", "a/.git/x",
                             "[odd].txt", "empty_of_visible/.keep"}) {
      write_file(folder_ / name, "text");
    }
  }
  // Names below the folder.
  std::vector<std::string> find(const std::vector<std::string>& inputs) {
    std::vector<std::string> whole, names;
    for (const std::string& input : inputs) whole.push_back(folder_ / input);
    for (const auto& path : find_input_files(whole)) {
      names.push_back(path.lexically_relative(folder_.path()));
    }
    return names;
  }
  TemporaryFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(InputFiles, FoldersAreSortedAndHiddenFilesLeftOut) {
  EXPECT_EQ(find({"a"}), (Names{"a/b/c.txt", "a/z.txt"}));
  EXPECT_EQ(find({""}), (Names{"[odd].txt", "a/b/c.txt", "a/z.txt", "a.txt", "b.txt"}));
}

TEST_F(InputFiles, KeepTheOrderOfTheCommandLine) {
  EXPECT_EQ(find({"b.txt", "a.txt"}), (Names{"b.txt", "a.txt"}));
  EXPECT_EQ(find({".hidden"}), (Names{".hidden"}));  // given by name
}

TEST_F(InputFiles, PatternsMatchFilesAndFolders) {
  EXPECT_EQ(find({"*.txt"}), (Names{"[odd].txt", "a.txt", "b.txt"}));
  EXPECT_EQ(find({"[ab]*"}), (Names{"a/b/c.txt", "a/z.txt", "a.txt", "b.txt"}));
  EXPECT_EQ(find({"[odd].txt"}), (Names{"[odd].txt"}));  // a file takes precedence over a pattern
}

TEST_F(InputFiles, RefuseWhatIsNotThere) {
  expect_error([&] { find({"none.txt"}); }, {"none.txt", "No such file"});
  expect_error([&] { find({"*.json"}); }, {"*.json", "no file matches"});
  expect_error([&] { find({"empty_of_visible"}); }, {"empty_of_visible", "holds no file"});
  expect_error([&] { find({"a.txt", "a/../a.txt"}); }, {"a.txt", "twice"});
  expect_error([&] { find({"a", "a/b"}); }, {"a/b/c.txt", "twice"});
  const std::vector<std::string> device{"/dev/null"};
  expect_error([&] { find_input_files(device); }, {"/dev/null", "not a regular file"});
}

TEST_F(InputFiles, LinksBelowAFolderLeadToFiles) {
  namespace fs = std::filesystem;
  fs::create_symlink(folder_ / "b.txt", folder_ / "a/link.txt");
  EXPECT_EQ(find({"a"}), (Names{"a/b/c.txt", "a/link.txt", "a/z.txt"}));
  fs::create_symlink("nowhere.txt", folder_ / "a/dangling.txt");
  expect_error([&] { find({"a"}); }, {"a/dangling.txt: is a link to nowhere.txt", "No such file"});
  fs::remove(folder_ / "a/dangling.txt");
  fs::create_symlink("self", folder_ / "a/self");
  expect_error([&] { find({"a"}); }, {"a/self: is a link to self, which cannot be read"});
  fs::remove(folder_ / "a/self");
  fs::create_directory_symlink(folder_.path(), folder_ / "a/up");
  expect_error([&] { find({"a"}); }, {"a/up: is a link to a folder", "name the folder"});
}

TEST_F(InputFiles, ALinkThatLeadsToItselfIsNamed) {
  std::filesystem::create_symlink("loop", folder_ / "loop");
  expect_error([&] { find({"loop"}); }, {"loop: cannot be opened: Too many levels"});
}

}  // namespace
}  // namespace quern
