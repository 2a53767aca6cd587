#include "data/prepare/encode_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "support/files.h"
#include "text/byte_tokenizer.h"

namespace quern {
namespace {

using namespace testing_support;

// Blocks of one line, numbered by their length.
class EncodePipelineTest : public testing::Test {
 protected:
  EncodePipeline::Read numbered(int64_t blocks, int64_t fail_at = -1) {
    return [=, this, i = int64_t{0}](SourceBlock& out) mutable {
      out = {};
      if (i == fail_at) fail("reading failed");
      if (i == blocks) return false;
      out.block.text = std::string(static_cast<size_t>(++i), 'x');
      out.block.parts = {{0, out.block.text.size(), true, true}};
      out.bytes_read = i;
      ++read_;
      return true;
    };
  }
  EncodePipeline::MakeEncoder encoder() {
    return [this] {
      return std::make_unique<BlockEncoder>(
          bytes_, EncodeSettings{256, TokenEncoding::llmc_u16, "text", {}});
    };
  }
  ByteTokenizer bytes_;
  std::atomic<int64_t> read_ = 0;
};

TEST_F(EncodePipelineTest, KeepsTheOrder) {
  for (const int threads : {1, 2, 7}) {
    EncodePipeline pipeline(numbered(500), encoder(), threads, 100'000);
    for (int64_t i = 1; i <= 500; ++i) {
      const auto block = pipeline.next();
      ASSERT_TRUE(block);
      ASSERT_EQ(block->bytes_read, i);
      ASSERT_EQ(block->parts[0].tokens, i + 1);
    }
    EXPECT_FALSE(pipeline.next());
    EXPECT_FALSE(pipeline.next());
  }
}

TEST_F(EncodePipelineTest, ErrorsComeInOrder) {
  EncodePipeline pipeline(numbered(100, 50), encoder(), 3, 1'000'000);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(pipeline.next());
  expect_error([&] { pipeline.next(); }, {"reading failed"});
}

TEST_F(EncodePipelineTest, AnEncoderThatCannotBeMade) {
  EncodePipeline pipeline(
      numbered(5), []() -> std::unique_ptr<BlockEncoder> { fail("no encoder"); }, 2, 1'000'000);
  expect_error([&] { pipeline.next(); }, {"no encoder"});
}

TEST_F(EncodePipelineTest, BoundsWhatIsInFlight) {
  EncodePipeline pipeline(numbered(1000), encoder(), 2, 50'000);  // about 12 blocks
  ASSERT_TRUE(pipeline.next());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(read_, 20);  // and stops: the destructor does not wait for the rest
}

TEST_F(EncodePipelineTest, OneBlockIsAlwaysLetIn) {
  EncodePipeline pipeline(numbered(3), encoder(), 2, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline.next());
  EXPECT_FALSE(pipeline.next());
}

}  // namespace
}  // namespace quern
