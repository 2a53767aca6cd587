#include "data/dataset.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "support/files.h"
#include "support/token_files.h"

namespace quern {
namespace {

using namespace testing_support;

std::vector<int32_t> tokens_of(const TokenSource& source) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.size()));
  source.copy(0, source.size(), tokens.data());
  return tokens;
}

TEST(TokenSource, SlicesOfMemoryAndFileAreAlike) {
  const TemporaryFolder folder;
  std::vector<int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  write_token_file(folder / "a.bin", tokens, TokenEncoding::llmc_u32);
  const TokenSource file(TokenFile::open(folder / "a.bin"));
  const TokenSource memory(std::vector<uint16_t>(tokens.begin(), tokens.end()), "memory");
  for (const TokenSource& source : {file, memory}) {
    EXPECT_EQ(tokens_of(source), tokens);
    EXPECT_EQ(tokens_of(source.slice(10, 50).slice(5, 8)), (std::vector<int32_t>{15, 16, 17}));
    EXPECT_EQ(source.slice(10, 50).largest_token(), 49);
    EXPECT_EQ(source.slice(10, 10).largest_token(), -1);
    std::array<int32_t, 4> out{};
    expect_error([&] { source.slice(10, 12).copy(0, 3, out.data()); }, {"there are 2"});
    expect_error([&] { source.slice(10, 12).slice(0, 3); }, {"of 2 tokens"});
    // The offset counts from the start of the corpus, so that the user finds it in the file.
    expect_error([&] { source.slice(10, 100).check_vocabulary(42); }, {"token 42 is 42"});
    EXPECT_NO_THROW(source.slice(10, 42).check_vocabulary(42));
  }
  EXPECT_EQ(TokenSource().size(), 0);
}

TEST(TokenSource, VocabularyIsCheckedBeyondTheFirstBlock) {
  std::vector<uint16_t> tokens(200000, 1);
  tokens[150000] = 300;
  const TokenSource source(tokens, "memory");
  EXPECT_EQ(source.largest_token(), 300);
  expect_error([&] { source.check_vocabulary(257); }, {"memory", "token 150000 is 300", "257"});
}

// Tokens 0 to 99 in shards of 40, 1, 0 and 59, of both widths.
TEST(TokenSource, ShardsAreOneStream) {
  const TemporaryFolder folder;
  std::vector<TokenFile> files;
  int32_t next = 0;
  for (const auto& [count, encoding] : {std::pair{40, TokenEncoding::llmc_u16},
                                        {1, TokenEncoding::llmc_u32},
                                        {0, TokenEncoding::llmc_u16},
                                        {59, TokenEncoding::llmc_u32}}) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), next);
    next += count;
    const auto path = folder / ("shard_" + std::to_string(files.size()) + ".bin");
    write_token_file(path, tokens, encoding);
    files.push_back(TokenFile::open(path));
  }
  const TokenSource source(std::move(files), "shards");
  EXPECT_EQ(source.size(), 100);
  EXPECT_EQ(source.files().size(), 4u);
  for (int64_t begin = 0; begin <= 100; ++begin) {
    for (int64_t count = 0; count <= 100 - begin; ++count) {
      std::vector<int32_t> expected(static_cast<size_t>(count)), out(expected.size());
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(begin));
      source.copy(begin, count, out.data());
      ASSERT_EQ(out, expected) << begin << " " << count;
    }
  }
  EXPECT_EQ(tokens_of(source.slice(38, 43)), (std::vector<int32_t>{38, 39, 40, 41, 42}));
  EXPECT_EQ(source.largest_token(), 99);
  // The error names the offset in the file.
  expect_error([&] { source.check_vocabulary(42); },
               {"shard_3.bin: token 1 is 42", "vocabulary size 42"});
  std::array<int32_t, 4> out{};
  expect_error([&] { source.copy(98, 3, out.data()); }, {"shards", "there are 100"});
}

void write_tokens(const std::filesystem::path& path, std::vector<int32_t> tokens) {
  std::filesystem::create_directories(path.parent_path());
  write_token_file(path, tokens, TokenEncoding::llmc_u16);
}

TEST(Dataset, APatternIsManyShardsInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  write_tokens(folder / "train_00010.bin", {5, 6});
  write_tokens(folder / "train_00002.bin", {3, 4});
  write_tokens(folder / "train_00001.bin", {1, 2});
  write_tokens(folder / "other.bin", {7, 8, 9});
  const std::string pattern = (folder / "train_*.bin").string();
  const Dataset data =
      open_dataset({pattern, (folder / "other.bin").string(), 0.1, DataFormat::automatic}, 2);
  EXPECT_FALSE(data.is_text);
  EXPECT_EQ(tokens_of(data.train), (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tokens_of(data.validation), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(data.train.name(), pattern);
  // The validation part is the end of the stream.
  const Dataset split = open_dataset({pattern, "", 0.5, DataFormat::automatic}, 2);
  EXPECT_EQ(tokens_of(split.validation), (std::vector<int32_t>{4, 5, 6}));

  expect_error(
      [&] {
        open_dataset({(folder / "no*.bin").string(), "", 0.1, DataFormat::automatic}, 2);
      },
      {"no*.bin", "no file matches"});
  write_file(folder / "train_a.txt", "text");
  expect_error(
      [&] {
        open_dataset({(folder / "train_*").string(), "", 0.1, DataFormat::automatic}, 2);
      },
      {"train_a.txt", "not a token file"});
}

TEST(Dataset, APreparedFolderHasItsParts) {
  const TemporaryFolder folder;
  write_tokens(folder / "train_00000.bin", {1, 2, 3});
  write_tokens(folder / "train_00001.bin", {4, 5, 6});
  const std::string path = folder.path().string();
  // Without validation files, the end is held out.
  EXPECT_EQ(open_dataset({path, "", 0.5, DataFormat::automatic}, 2).train.size(), 3);
  write_tokens(folder / "validation_00000.bin", {7, 8, 9});
  write_file(folder / "train_00000.json", "{}");
  write_file(folder / "tokenizer/tokenizer.json", "{}");
  const Dataset data = open_dataset({path, "", 0.5, DataFormat::automatic}, 2);
  EXPECT_EQ(tokens_of(data.train), (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tokens_of(data.validation), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(open_dataset({path, "", 0.0, DataFormat::automatic}, 2).validation.size(), 0);

  const TemporaryFolder other;
  write_tokens(other / "train_00000.bin", {1, 2, 3});
  const Dataset both = open_dataset({other.path().string(), path, 0.5, DataFormat::automatic}, 2);
  EXPECT_EQ(tokens_of(both.validation), (std::vector<int32_t>{7, 8, 9}));
  expect_error(
      [&] {
        open_dataset({path, other.path().string(), 0.5, DataFormat::automatic}, 2);
      },
      {other.path().string(), "no validation_*.bin"});
  const TemporaryFolder only;  // of validation data
  write_tokens(only / "validation_00000.bin", {7, 8, 9});
  const std::string held_out = only.path().string();
  EXPECT_EQ(open_dataset({path, held_out, 0.0, DataFormat::automatic}, 2).validation.size(), 3);
  expect_error(
      [&] {
        open_dataset({held_out, "", 0.0, DataFormat::automatic}, 2);
      },
      {held_out, "no train_*.bin"});
}

TEST(Dataset, SplitsByFraction) {
  const TemporaryFolder folder;
  // The cut equals Python's len * 9 // 10 for all remainders of the length.
  for (int64_t length : {30, 31, 39, 1003, 115394}) {
    const auto path = write_file(folder / "a.txt", std::string(static_cast<size_t>(length), 'x'));
    const Dataset data = open_dataset({path.string(), "", 0.1, DataFormat::automatic}, 2);
    EXPECT_EQ(data.train.size(), length * 9 / 10);
    EXPECT_EQ(data.validation.size(), length - length * 9 / 10);
    EXPECT_TRUE(data.is_text);
    EXPECT_EQ(data.vocabulary(), 257);
  }
}

TEST(Dataset, SplitsByFile) {
  const TemporaryFolder folder;
  const auto a = write_file(folder / "a.txt", "training"),
             b = write_file(folder / "b.txt", "valid");
  const Dataset data = open_dataset({a.string(), b.string(), 0.1, DataFormat::automatic}, 4);
  EXPECT_EQ(data.train.size(), 8);
  EXPECT_EQ(data.validation.size(), 5);
  EXPECT_EQ(tokens_of(data.validation), (std::vector<int32_t>{'v', 'a', 'l', 'i', 'd'}));
}

TEST(Dataset, FractionZeroMeansNoValidation) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.txt", "training");
  const Dataset data = open_dataset({path.string(), "", 0.0, DataFormat::automatic}, 7);
  EXPECT_EQ(data.train.size(), 8);
  EXPECT_EQ(data.validation.size(), 0);
}

TEST(Dataset, FormatIsFoundOrGiven) {
  const TemporaryFolder folder;
  const std::vector<int32_t> tokens(40, 7);
  const auto open = [&](const std::string& name, DataFormat format) {
    return open_dataset({(folder / name).string(), "", 0.5, format}, 4);
  };
  write_token_file(folder / "raw.bin", tokens, TokenEncoding::raw_u16);
  write_token_file(folder / "llmc.dat", tokens, TokenEncoding::llmc_u16);
  write_file(folder / "text/a.txt", "some text for this");
  EXPECT_EQ(open("raw.bin", DataFormat::automatic).train.size(), 20);
  EXPECT_EQ(open("raw.bin", DataFormat::automatic).vocabulary(), 8);
  EXPECT_EQ(open("llmc.dat", DataFormat::automatic).train.size(), 20);
  EXPECT_TRUE(open("text", DataFormat::automatic).is_text);
  EXPECT_EQ(open("raw.bin", DataFormat::text).train.size(), 40);  // its 80 bytes
  expect_error([&] { open("raw.bin", DataFormat::llmc); }, {"magic"});
}

TEST(Dataset, RefusesWhatCannotTrain) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.txt", std::string(40, 'x')).string();
  const auto tokens = (folder / "t.bin").string();
  write_token_file(tokens, std::vector<int32_t>(40), TokenEncoding::raw_u16);
  const auto open = [](DataOptions options, int64_t context) {
    return [=] { open_dataset(options, context); };
  };
  constexpr auto kAny = DataFormat::automatic;
  EXPECT_NO_THROW(open({path, "", 0.1, kAny}, 3)());
  expect_error(open({path, "", 0.1, kAny}, 4), {"a.txt", "validation part has 4", "ctx + 1 = 5"});
  expect_error(open({path, "", 0.1, kAny}, 36), {"a.txt", "training part has 36", "ctx + 1 = 37"});
  expect_error(open({path, "", 1.0, kAny}, 4), {"validation_fraction is 1"});
  expect_error(open({"", "", 0.1, kAny}, 4), {"no training data"});
  expect_error(open({path, tokens, 0.1, kAny}, 4), {"is a token file", "is text"});
  expect_error(open({path + ".none", "", 0.1, kAny}, 4), {"a.txt.none", "No such file"});
}

}  // namespace
}  // namespace quern
