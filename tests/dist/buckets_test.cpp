#include "dist/layout.h"

#include <gtest/gtest.h>

#include "model/transformer_lm.h"
#include "support/training.h"

namespace quern {
namespace {

// Every element belongs to one rank, and slices begin at chunks of the norm. A tiny model leaves
// the last of many ranks without any.
TEST(Buckets, RanksShareOutTheArena) {
  TransformerLM model(testing_support::tiny_model(), {});
  const ParameterTable table(model);
  for (const BucketExchange exchange : {BucketExchange::naive, BucketExchange::overlapped}) {
    const std::vector<Bucket> buckets = make_buckets(table, exchange);
    EXPECT_EQ(buckets.size(), exchange == BucketExchange::naive ? 1u : 4u);
    for (const int ranks : {1, 2, 3, 4, 7, 1000}) {
      std::vector<int> owners(static_cast<size_t>(table.trainable()));
      for (int rank = 0; rank < ranks; ++rank) {
        const Placement share = share_of(buckets, ranks, rank);
        int64_t held = 0;
        for (const auto& [begin, end, place] : share.pieces()) {
          EXPECT_EQ(begin % kernels::kNormChunk, 0);
          EXPECT_EQ(place, std::exchange(held, held + end - begin));
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++owners[static_cast<size_t>(i)];
        }
        EXPECT_EQ(share.size(), held);
        EXPECT_TRUE(held > 0 || ranks == 1000) << rank;
        EXPECT_TRUE(held == 0 || rank != 999);
      }
      EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << ranks;
    }
  }
}

}  // namespace
}  // namespace quern
