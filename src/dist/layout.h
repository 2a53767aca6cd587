// The parts of the model's buffers that each rank holds.
#pragma once

#include "dist/buckets.h"
#include "dist/parallel.h"
#include "nn/arena.h"

namespace quern {

// For zero1, zero2 or fsdp on several ranks. The naive exchange keeps whole weights and gradients
// on every rank in all three.
ArenaLayout layout_of(const ParameterTable& table, Parallel parallel, BucketExchange exchange,
                      int ranks, int rank);

// This rank's slices of all buckets, one behind the other.
Placement share_of(const std::vector<Bucket>& buckets, int ranks, int rank);

// Each bucket has a place of its own, or the blocks take turns at two places. A bucket's place is
// padded to N slices of full length, so that all slices travel in the same way.
Placement placed(const std::vector<Bucket>& buckets, bool in_turns, int ranks);

}  // namespace quern
