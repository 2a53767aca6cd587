#include "data/token_file.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/token_files.h"

namespace quern {
namespace {

using namespace testing_support;

class TokenFileWriterTest : public testing::Test {
 protected:
  static std::vector<uint16_t> count(size_t tokens, uint16_t first = 0) {
    std::vector<uint16_t> values(tokens);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  // The output of write_token_file.
  std::string expected(const std::vector<uint16_t>& tokens, TokenEncoding encoding) {
    const std::vector<int32_t> values(tokens.begin(), tokens.end());
    write_token_file(folder_ / "expected", values, encoding);
    return read_file(folder_ / "expected");
  }
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "a.bin", part_ = folder_ / "a.bin.part";
};

TEST_F(TokenFileWriterTest, WritesWhatTheOtherWriterWrites) {
  for (const size_t size : {size_t{3}, size_t{2'000'000}}) {  // within the buffer, and larger
    for (const TokenEncoding encoding : {TokenEncoding::raw_u16, TokenEncoding::llmc_u16}) {
      const auto tokens = count(size);
      TokenFileWriter writer(path_, encoding);
      writer.write(std::as_bytes(std::span(tokens).first(2)));
      writer.write(std::as_bytes(std::span(tokens).subspan(2)));
      EXPECT_FALSE(std::filesystem::exists(path_) && size == 3 &&
                   encoding == TokenEncoding::raw_u16);
      writer.commit();
      EXPECT_EQ(read_file(path_), expected(tokens, encoding));
      EXPECT_FALSE(std::filesystem::exists(part_));
    }
  }
  const std::vector<uint32_t> wide{70000, 1};
  TokenFileWriter writer(path_, TokenEncoding::llmc_u32);
  writer.write(std::as_bytes(std::span(wide)));
  writer.commit();
  int32_t first = 0;
  TokenFile::open(path_).copy(0, 1, &first);
  EXPECT_EQ(first, 70000);
}

TEST_F(TokenFileWriterTest, GoesOnBehindWhatIsKept) {
  const auto tokens = count(100), other = count(50, 1000);
  for (const bool committed : {false, true}) {
    {
      TokenFileWriter writer(path_, TokenEncoding::llmc_u16);
      writer.write(std::as_bytes(std::span(tokens).first(60)));
      writer.write(std::as_bytes(std::span(other)));
      if (committed) {
        writer.commit();
      } else {
        writer.sync();
      }
    }
    TokenFileWriter writer(path_, TokenEncoding::llmc_u16, 60);
    EXPECT_EQ(writer.tokens(), 60);
    writer.write(std::as_bytes(std::span(tokens).subspan(60)));
    writer.commit();
    EXPECT_EQ(read_file(path_), expected(tokens, TokenEncoding::llmc_u16));
  }
}

TEST_F(TokenFileWriterTest, Refuses) {
  expect_error([&] { TokenFileWriter(folder_ / "no" / "a.bin", TokenEncoding::raw_u16); },
               {"a.bin.part", "No such file"});
  write_file(part_, "short");
  expect_error([&] { TokenFileWriter(path_, TokenEncoding::raw_u16, 3); },
               {"a.bin.part: has 5 bytes, expected at least 6"});
  TokenFileWriter writer(path_, TokenEncoding::raw_u16);
  expect_error([&] { writer.write(std::as_bytes(std::span("ab"))); }, {"3 bytes", "2 bytes"});
}

TEST_F(TokenFileWriterTest, AFullDiskIsAnError) {
  const auto tokens = count(1'000'000);
  TokenFileWriter writer(path_, TokenEncoding::raw_u16);
  const FileSizeLimit limit(1'500'000);
  expect_error([&] { writer.write(std::as_bytes(std::span(tokens))); },
               {"a.bin.part: cannot be written"});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace quern
