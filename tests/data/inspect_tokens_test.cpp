#include "data/inspect_tokens.h"

#include <gtest/gtest.h>

#include "data/prepare/prepare.h"
#include "support/files.h"
#include "support/token_files.h"

namespace quern {
namespace {

using namespace testing_support;

// A prepared folder: "ab", "cde" and "f" as bytes, in shards of 4 tokens.
class InspectTokens : public testing::Test {
 protected:
  void SetUp() override {
    PrepareOptions options;
    for (const char* text : {"ab", "cde", "f"}) {
      options.inputs.push_back(write_file(folder_ / "in" / text, text));
    }
    options.out = out_;
    options.validation_fraction = 0.0;
    options.shard_tokens = 4;
    prepare_data(options);
    options_.path = out_;
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    expect_error([&] { inspect_tokens(options_); }, parts);
  }
  TemporaryFolder folder_;
  std::filesystem::path out_ = folder_ / "out";
  InspectOptions options_;
};

TEST_F(InspectTokens, APreparedFolder) {
  options_.verify = true;
  options_.window = 2;
  options_.length = 4;
  const Inspection inspection = inspect_tokens(options_);
  ASSERT_EQ(inspection.parts.size(), 1u);
  const InspectedPart& part = inspection.parts[0];
  EXPECT_EQ(part.name, "train");
  EXPECT_EQ(part.files.size(), 3u);
  EXPECT_EQ(part.tokens, 9);
  EXPECT_EQ(part.largest, 256);
  EXPECT_EQ(part.documents, 3);
  EXPECT_EQ(part.lengths.documents, 3);
  EXPECT_EQ(part.lengths.longest, 3);
  EXPECT_EQ(part.unfinished, 0);
  EXPECT_EQ(inspection.end_token, 256);
  EXPECT_EQ(inspection.window, (std::vector<int32_t>{256, 'c', 'd', 'e'}));  // of two shards
  ASSERT_TRUE(inspection.tokenizer);
  EXPECT_EQ(inspection.tokenizer->kind(), "bytes");
}

TEST_F(InspectTokens, OneFileAndAPattern) {
  options_.path = out_ / "train_00001.bin";
  EXPECT_EQ(inspect_tokens(options_).parts[0].tokens, 4);
  options_.path = out_ / "train_0000[01].bin";
  const Inspection inspection = inspect_tokens(options_);
  EXPECT_EQ(inspection.parts[0].tokens, 8);
  EXPECT_EQ(inspection.parts[0].unfinished, 1);  // "f", whose end token is in the third file
}

TEST_F(InspectTokens, AFileWithoutASidecar) {
  const std::vector<int32_t> tokens{1, 50000, 7};
  write_token_file(folder_ / "nanogpt.bin", tokens, TokenEncoding::raw_u16);
  options_.path = folder_ / "nanogpt.bin";
  const Inspection inspection = inspect_tokens(options_);
  EXPECT_EQ(inspection.parts[0].largest, 50000);
  EXPECT_EQ(inspection.parts[0].documents, std::nullopt);
  EXPECT_EQ(inspection.end_token, std::nullopt);
  EXPECT_FALSE(inspection.tokenizer);
  EXPECT_EQ(inspection.window, tokens);
  options_.verify = true;
  expect_refused({"nanogpt.bin", "no sidecar", "nanogpt.json"});
}

TEST_F(InspectTokens, LengthsOfDocuments) {
  write_token_file(folder_ / "a0.bin", std::vector<int32_t>{1, 2, 256, 256, 5, 5},
                   TokenEncoding::llmc_u32);
  // A document continues in the next file.
  write_token_file(folder_ / "a1.bin", std::vector<int32_t>{5, 256, 1, 256, 70000},
                   TokenEncoding::llmc_u32);
  options_.path = folder_ / "a*.bin";
  options_.tokenizer = "bytes";
  options_.length = 2;
  const InspectedPart part = inspect_tokens(options_).parts[0];
  EXPECT_EQ(part.tokens, 11);
  EXPECT_EQ(part.largest, 70000);
  EXPECT_EQ(part.unfinished, 1);
  EXPECT_EQ(part.lengths.documents, 4);  // of 2, 0, 3 and 1 tokens
  EXPECT_EQ(part.lengths.shortest, 0);
  EXPECT_EQ(part.lengths.longest, 3);
  EXPECT_EQ(part.lengths.median, 1);
  EXPECT_DOUBLE_EQ(part.lengths.mean, 1.5);
  EXPECT_EQ(part.lengths.histogram, (std::vector<int64_t>{1, 1, 2}));
}

TEST_F(InspectTokens, RefusesWhatIsWrong) {
  options_.window = 9;
  expect_refused({"begins at token 9", "0 to 8"});
  options_.window = 0;
  options_.tokenizer = source_folder() / "tests/fixtures/tokenizers/gpt2.json";
  expect_refused({"gpt2.json", "train_00000.bin was made with bytes"});
  options_.tokenizer = "";
  options_.path = folder_ / "in";
  expect_refused({"no token file"});
  options_.path = out_;

  // Changes a token, to one inside the vocabulary and to one outside it.
  std::string bytes = read_file(out_ / "train_00001.bin");
  bytes[1024] = 'x';
  write_file(out_ / "train_00001.bin", bytes);
  EXPECT_NO_THROW(inspect_tokens(options_));
  options_.verify = true;
  expect_refused({"train_00001.bin", "changed"});
  options_.verify = false;
  bytes[1025] = 5;
  write_file(out_ / "train_00001.bin", bytes);
  expect_refused({"train_00001.bin", "token 0", "257"});
  write_file(out_ / "train_00001.bin", bytes.substr(0, bytes.size() - 2));
  expect_refused({"train_00001.bin"});
}

}  // namespace
}  // namespace quern
