// The parts of the model's buffers that each rank holds.
#pragma once

#include "dist/buckets.h"
#include "dist/parallel.h"
#include "nn/arena.h"

namespace quern {

// For several ranks. The naive exchange keeps whole weights and gradients on every rank. Behind the
// gradients of ddp there is room for the last bucket's slices, all of full length.
ArenaLayout layout_of(const ParameterTable& table, Parallel parallel, BucketExchange exchange,
                      int ranks, int rank);

// This rank's slices of all buckets, one behind the other.
Placement share_of(const std::vector<Bucket>& buckets, int ranks, int rank);

// Each bucket has a place of its own, or the blocks take turns at two places. A bucket's place is
// padded to N slices of full length, so that all slices travel in the same way.
Placement placed(const std::vector<Bucket>& buckets, bool in_turns, int ranks);

}  // namespace quern
