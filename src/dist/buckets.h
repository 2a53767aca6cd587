// The arena cut into buckets, each moved by one collective, and a bucket into the ranks' slices.
#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "kernels/optimizer.h"
#include "nn/parameter_table.h"

namespace quern {

// naive: one bucket, moved after the backward. overlapped: a second stream moves a block's
// gradients when its backward has written them, and its weights before its forward reads them.
enum class BucketExchange { naive, overlapped };

// A range of the arena that is moved as one: a block, the parameters between blocks, or all.
struct Bucket {
  std::string name;  // in messages: "block 3"
  int64_t begin = 0, end = 0;
  int turn = -1;  // number among the blocks; -1: not a block

  bool is_block() const { return turn >= 0; }
  int64_t size() const { return end - begin; }
  bool holds(int64_t element) const { return begin <= element && element < end; }
  // They begin at multiples of kernels::kNormChunk in the arena.
  RankSlices slices(int ranks) const { return {size(), ranks, kernels::kNormChunk}; }
};

// The buckets of the trainable parameters, in forward order.
std::vector<Bucket> make_buckets(const ParameterTable& table, BucketExchange exchange);

}  // namespace quern
