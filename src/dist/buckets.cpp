#include "dist/buckets.h"

#include <utility>

namespace quern {

std::vector<Bucket> make_buckets(const ParameterTable& table, BucketExchange exchange) {
  if (exchange == BucketExchange::naive) return {{"all parameters", 0, table.trainable()}};
  std::vector<Bucket> buckets;
  int64_t at = 0;
  int turn = 0;
  const auto up_to = [&](int64_t end, const std::string& name, bool is_block = false) {
    if (end <= at) return;
    buckets.push_back({name, std::exchange(at, end), end, is_block ? turn++ : -1});
  };
  for (size_t i = 0; i < table.block_count(); ++i) {
    const ParameterTable::Range& block = table.block(i);
    if (block.begin == block.end) continue;
    up_to(block.begin, cat("the parameters before block ", i));
    up_to(block.end, cat("block ", i), true);
  }
  up_to(table.trainable(), "the parameters after the blocks");
  return buckets;
}

}  // namespace quern
