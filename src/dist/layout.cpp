#include "dist/layout.h"

#include <algorithm>

#include "base/round_up.h"

namespace quern {

namespace {

// What is frozen, behind the rest.
void add_frozen(Placement& places, const ParameterTable& table) {
  places.add(table.trainable(), table.size(), round_up(places.size(), kernels::kNormChunk));
}

}  // namespace

ArenaLayout layout_of(const ParameterTable& table, Parallel parallel, BucketExchange exchange,
                      int ranks, int rank) {
  const std::vector<Bucket> buckets = make_buckets(table, exchange);
  const Placement share = share_of(buckets, ranks, rank);
  const bool overlapped = exchange == BucketExchange::overlapped;
  ArenaLayout layout;
  layout.values = share;
  layout.weights = Placement::whole(table.size());
  layout.gradients = layout.sums = Placement::whole(table.trainable());
  if (overlapped && parallel != Parallel::zero1) {
    layout.gradients = in_turns(buckets);
    layout.sums = share;
    layout.gradients_in_turns = true;
  }
  if (overlapped && parallel == Parallel::fsdp) {
    layout.weights = in_turns(buckets);
    add_frozen(layout.weights, table);
    layout.weights_in_turns = true;
  }
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

Placement in_turns(const std::vector<Bucket>& buckets) {
  int64_t block = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.is_block()) block = std::max(block, bucket.size());
  }
  Placement places;
  int64_t rest = 2 * block;
  for (const Bucket& bucket : buckets) {
    const int64_t place = bucket.is_block() ? bucket.turn % 2 * block : rest;
    if (!bucket.is_block()) rest += round_up(bucket.size(), kernels::kNormChunk);
    places.add(bucket.begin, bucket.end, place);
  }
  return places;
}

}  // namespace quern
