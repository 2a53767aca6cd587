#include "data/text_corpus.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
using Tokens = std::vector<uint16_t>;

TEST(TextCorpus, AFileIsItsBytes) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_text(write_file(folder / "a.txt", "a\xff\n")), (Tokens{'a', 0xff, '\n'}));
}

TEST(TextCorpus, AFolderIsItsFilesInOrderWithEndOfTextBetween) {
  const TemporaryFolder folder;
  write_file(folder / "b.txt", "B");
  write_file(folder / "a/z.txt", "Z");
  write_file(folder / "a/c.txt", "C");
  write_file(folder / "aa-empty.txt", "");
  write_file(folder / ".git/config", "hidden");
  write_file(folder / ".hidden", "hidden");
  EXPECT_EQ(read_text(folder.path()), (Tokens{'C', 256, 'Z', 256, 'B'}));
}

TEST(TextCorpus, MissingAndEmptyAreDifferentErrors) {
  const TemporaryFolder folder;
  expect_error([&] { read_text(folder / "none.txt"); }, {"none.txt", "No such file"});
  write_file(folder / "empty.txt", "");
  expect_error([&] { read_text(folder / "empty.txt"); }, {"empty.txt", "text file is empty"});
  expect_error([&] { read_text(folder.path()); }, {folder.path().string(), "holds no text"});
}

}  // namespace
}  // namespace quern
