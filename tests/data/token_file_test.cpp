#include "data/token_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "data/dataset.h"
#include "support/files.h"
#include "support/token_files.h"

namespace quern {
namespace {

using namespace testing_support;

// An llm.c file byte by byte, independent of write_token_file.
std::string llmc_bytes(int32_t magic, int32_t version, int32_t count, const std::string& payload) {
  std::array<int32_t, 256> header{magic, version, count};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), header.data(), sizeof header);
  return bytes + payload;
}

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), tokens.data());
  return tokens;
}

TEST(TokenFile, ReadsNanoGpt) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", std::string("\x01\x00\x50\xc4\xff\xff", 6));
  const TokenFile file = TokenFile::open(path);
  EXPECT_EQ(file.encoding(), TokenEncoding::raw_u16);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{1, 50256, 65535}));
  EXPECT_EQ(all_tokens(file)[1], 50256);
}

TEST(TokenFile, ReadsLlmc) {
  const TemporaryFolder folder;
  const auto narrow = TokenFile::open(
      write_file(folder / "a.bin", llmc_bytes(20240520, 1, 2, std::string("\x50\xc4\x07\x00", 4))));
  EXPECT_EQ(narrow.encoding(), TokenEncoding::llmc_u16);
  EXPECT_EQ(all_tokens(narrow), (std::vector<int32_t>{50256, 7}));

  const auto wide = TokenFile::open(
      write_file(folder / "b.bin",
                 llmc_bytes(20240801, 7, 2, std::string("\x00\x01\x02\x00\x05\x00\x00\x00", 8))),
      DataFormat::llmc);
  EXPECT_EQ(wide.encoding(), TokenEncoding::llmc_u32);
  EXPECT_EQ(all_tokens(wide), (std::vector<int32_t>{0x20100, 5}));
}

TEST(TokenFile, ExplicitFormatWins) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.bin", llmc_bytes(20240520, 1, 0, ""));
  EXPECT_EQ(TokenFile::open(path).size(), 0);
  EXPECT_EQ(TokenFile::open(path, DataFormat::nanogpt).size(), 512);  // the header as tokens
}

TEST(TokenFile, RefusesEachMalformation) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& bytes, DataFormat format = DataFormat::automatic) {
    const auto path = write_file(folder / "bad.bin", bytes);
    return [=] { TokenFile::open(path, format); };
  };
  expect_error(open(""), {"bad.bin", "empty"});
  expect_error(open("abc"), {"bad.bin", "3 bytes", "even"});
  expect_error(open("abcd", DataFormat::llmc), {"bad.bin", "magic"});
  expect_error(open(llmc_bytes(20240520, 1, 0, "").substr(0, 1000)), {"1000 bytes", "1024"});
  expect_error(open(llmc_bytes(20240520, 7, 0, "")), {"version 7", "expected 1"});
  expect_error(open(llmc_bytes(20240801, 1, 0, "")), {"version 1", "expected 7"});
  expect_error(open(llmc_bytes(20240520, 1, 3, "abcd")), {"3 tokens of 2 bytes", "4 bytes"});
  expect_error(open(llmc_bytes(20240520, 1, 1, "abcd")), {"1 tokens of 2 bytes", "4 bytes"});
  expect_error(open(llmc_bytes(20240801, 7, 2, "abcd")), {"2 tokens of 4 bytes", "4 bytes"});
  expect_error(open(llmc_bytes(20240520, 1, -1, "")), {"-1 tokens"});
  expect_error(open("ab", DataFormat::text), {"text"});
  expect_error(open(llmc_bytes(20240326, 3, 0, "")), {"bad.bin", "GPT-2 model of llm.c"});
  expect_error([&] { TokenFile::open(folder / "none.bin"); }, {"none.bin", "No such file"});
}

TEST(TokenFile, CopyStaysInside) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(write_file(folder / "a.bin", "abcdef"));
  std::array<int32_t, 4> out{};
  expect_error([&] { file.copy(1, 3, out.data()); }, {"[1, 1 + 3)", "has 3"});
  expect_error([&] { file.copy(-1, 1, out.data()); }, {"has 3"});
  expect_error([&] { file.copy(2, INT64_MAX, out.data()); }, {"has 3"});
}

TEST(TokenFile, VocabularyNamesOffsetAndValue) {
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", std::vector<int32_t>{3, 9, 10, 11}, TokenEncoding::raw_u16);
  const TokenSource file(TokenFile::open(folder / "a.bin"));
  EXPECT_NO_THROW(file.check_vocabulary(12));
  expect_error([&] { file.check_vocabulary(10); }, {"a.bin", "token 2 is 10", "size 10"});

  // A uint32 above 2^31 does not count as a negative number, which would pass.
  const TokenSource wide(TokenFile::open(write_file(
      folder / "b.bin", llmc_bytes(20240801, 7, 1, std::string("\xff\xff\xff\xff", 4)))));
  expect_error([&] { wide.check_vocabulary(100); }, {"token 0 is 4294967295"});
}

TEST(TokenFile, WriterRoundTripsEveryEncoding) {
  const TemporaryFolder folder;
  const std::vector<int32_t> tokens{0, 1, 256, 65535};
  for (const TokenEncoding encoding :
       {TokenEncoding::raw_u16, TokenEncoding::llmc_u16, TokenEncoding::llmc_u32}) {
    write_token_file(folder / "a.bin", tokens, encoding);
    const TokenFile file = TokenFile::open(folder / "a.bin");
    EXPECT_EQ(file.encoding(), encoding);
    EXPECT_EQ(all_tokens(file), tokens);
  }
}

TEST(TokenFile, WriterRefuses) {
  const TemporaryFolder folder;
  const std::vector<int32_t> large{1, 65536}, negative{-1};
  expect_error([&] { write_token_file(folder / "a", large, TokenEncoding::raw_u16); },
               {"token 1 is 65536", "65535"});
  expect_error([&] { write_token_file(folder / "a", negative, TokenEncoding::llmc_u32); },
               {"token 0 is -1"});
  expect_error([&] { write_token_file(folder / "no" / "a", {}, TokenEncoding::raw_u16); },
               {"cannot be created", "No such file"});
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(TokenFile, AFullDiskLeavesWhatWasThere) {
  const TemporaryFolder folder;
  write_file(folder / "a.bin", "old!");
  std::filesystem::create_symlink("/dev/full", folder / "a.bin.tmp");  // every write: ENOSPC
  const std::vector<int32_t> tokens(100000);
  expect_error([&] { write_token_file(folder / "a.bin", tokens, TokenEncoding::raw_u16); },
               {"a.bin", "No space left"});
  EXPECT_EQ(read_file(folder / "a.bin"), "old!");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "a.bin.tmp"));
}

}  // namespace
}  // namespace quern
