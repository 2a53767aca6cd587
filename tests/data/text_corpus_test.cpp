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

TEST(TextCorpus, WhatIsNoTextIsRefused) {
  const TemporaryFolder folder;
  const std::string zero(1, '\0');
  const auto refused = [&](const std::string& name, const std::string& bytes,
                           const std::string& message, bool named_so = false) {
    write_file(folder / "good.txt", "text");
    const auto path = write_file(folder / name, bytes);
    expect_error([&] { read_text(folder.path()); }, {name, message});
    EXPECT_EQ(read_text(path, true).size(), bytes.size());
    if (named_so) {
      EXPECT_EQ(read_text(path).size(), bytes.size()) << "the file itself was asked for";
    } else {
      expect_error([&] { read_text(path); }, {name, message});
    }
    std::filesystem::remove(path);
  };
  refused("train.bin", "ab", "named as a token file", true);
  refused("a.jsonl", "{}", "`quern data prepare`", true);
  refused("a.txt", "text" + zero, "byte 4 is 0");
  refused("a.gz", "\x1f\x8b", "compressed");
  refused("a.zip", "PK\x03\x04", "zip");
  refused("a.data", "PAR1abcd", "it is a Parquet file; `python3 -c 'import pandas; ");
  EXPECT_EQ(read_text(folder.path()).size(), 4u);
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
