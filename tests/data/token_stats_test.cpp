#include "data/token_stats.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

class TokenStatsTest : public testing::Test {
 protected:
  void add(TokenCounter& counter, const std::vector<int32_t>& tokens) {
    write_token_file(folder_ / "a.bin", tokens, TokenEncoding::llmc_u32);
    counter.add(TokenFile::open(folder_ / "a.bin"));
  }
  TemporaryFolder folder_;
};

TEST_F(TokenStatsTest, LengthsOfDocuments) {
  TokenCounter counter(9);
  add(counter, {1, 2, 9, 9, 5, 5});
  add(counter, {5, 9, 1, 9, 7});  // a document runs from one file to the next
  EXPECT_EQ(counter.tokens(), 11);
  EXPECT_EQ(counter.largest(), 9);
  EXPECT_EQ(counter.unfinished(), 1);
  const LengthStats lengths = counter.lengths();  // 2, 0, 3, 1
  EXPECT_EQ(lengths.documents, 4);
  EXPECT_EQ(lengths.shortest, 0);
  EXPECT_EQ(lengths.longest, 3);
  EXPECT_EQ(lengths.median, 1);
  EXPECT_DOUBLE_EQ(lengths.mean, 1.5);
  EXPECT_EQ(lengths.histogram, (std::vector<int64_t>{1, 1, 2}));
}

TEST_F(TokenStatsTest, WithoutAnEndToken) {
  TokenCounter counter(std::nullopt);
  EXPECT_EQ(counter.largest(), -1);
  add(counter, {1, 2, 70000});
  EXPECT_EQ(counter.largest(), 70000);
  EXPECT_EQ(counter.lengths().documents, 0);
}

}  // namespace
}  // namespace quern
