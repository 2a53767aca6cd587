#include "dist/layout.h"

#include <algorithm>

#include "base/round_up.h"

namespace quern {

namespace {

// The frozen parameters, which follow all others.
void add_frozen(Placement& places, const ParameterTable& table) {
  places.add(table.trainable(), table.size(), round_up(places.size(), kernels::kNormChunk));
}

}  // namespace

ArenaLayout layout_of(const ParameterTable& table, Parallel parallel, BucketExchange exchange,
                      int ranks, int rank) {
  const std::vector<Bucket> buckets = make_buckets(table, exchange);
  if (!shares_out(parallel)) {
    ArenaLayout layout = ArenaLayout::whole(table);
    for (const Bucket& bucket : buckets) {
      layout.gradients.extend(bucket.begin + bucket.slices(ranks).filled().count);
    }
    return layout;
  }
  const bool overlapped = exchange == BucketExchange::overlapped;
  ArenaLayout layout;
  layout.shared_out = true;
  for (int each = 0; each < ranks; ++each) layout.shares.push_back(share_of(buckets, ranks, each));
  layout.rank = rank;
  layout.values = layout.shares[static_cast<size_t>(rank)];
  layout.weights_in_turns = overlapped && parallel == Parallel::fsdp;
  layout.gradients_in_turns = overlapped && parallel != Parallel::zero1;
  layout.weights = placed(buckets, layout.weights_in_turns, ranks);
  layout.gradients = placed(buckets, layout.gradients_in_turns, ranks);
  layout.sums = layout.gradients_in_turns ? layout.values : layout.gradients;
  add_frozen(layout.weights, table);
  add_frozen(layout.values, table);
  return layout;
}

Placement share_of(const std::vector<Bucket>& buckets, int ranks, int rank) {
  Placement share;
  for (const Bucket& bucket : buckets) {
    const RankSlices slices = bucket.slices(ranks);
    share.append(bucket.begin + slices.begin(rank), bucket.begin + slices.end(rank));
  }
  return share;
}

Placement placed(const std::vector<Bucket>& buckets, bool in_turns, int ranks) {
  const auto size_of = [&](const Bucket& bucket) { return ranks * bucket.slices(ranks).each; };
  int64_t block = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.is_block()) block = std::max(block, size_of(bucket));
  }
  Placement places;
  int64_t next = in_turns ? 2 * block : 0;
  for (const Bucket& bucket : buckets) {
    const bool turns = in_turns && bucket.is_block();
    places.add(bucket.begin, bucket.end, turns ? bucket.turn % 2 * block : next);
    if (!turns) next += size_of(bucket);
  }
  places.extend(next);
  return places;
}

}  // namespace quern
