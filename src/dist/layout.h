// What each rank of a training has of the model's buffers.
#pragma once

#include "dist/buckets.h"
#include "dist/parallel.h"
#include "nn/arena.h"

namespace quern {

// Under zero1, zero2 or fsdp of several ranks. The naive exchange has whole weights and gradients
// on every rank under each of them.
ArenaLayout layout_of(const ParameterTable& table, Parallel parallel, BucketExchange exchange,
                      int ranks, int rank);

// This rank's slices of all buckets, one behind the other.
Placement share_of(const std::vector<Bucket>& buckets, int ranks, int rank);

// Each bucket at a place of its own, or blocks at two places in turn. Behind a bucket there is room
// up to the end of a last slice of full length, so that all slices can travel alike.
Placement placed(const std::vector<Bucket>& buckets, bool in_turns, int ranks);

}  // namespace quern
