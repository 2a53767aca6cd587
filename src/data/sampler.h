// Which windows of a corpus make a batch. A window at `start` is the inputs [start, start + T) and
// the targets one further, so it covers T + 1 tokens.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace quern {

// All there is to know to continue: batch k is a pure function of (seed, k).
struct SamplerState {
  uint64_t seed = 1;
  uint64_t batch = 0;  // the next one

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// Windows drawn uniformly, with replacement, over the size - T starts. Counter-based (Philox), so
// nothing depends on how many batches were drawn before, or by whom.
class RandomSampler {
 public:
  // size: tokens of the corpus. Throws when it has no whole window.
  RandomSampler(int64_t size, int64_t context, uint64_t seed);

  // starts[i] for the rows i of batch k. Rows are independent of how many there are, as long as
  // `rows_per_batch` stays: row i of batch k is draw k * rows_per_batch + i.
  void draw(uint64_t batch, std::span<int64_t> starts) const;

  int64_t context() const { return context_; }
  uint64_t seed() const { return seed_; }

 private:
  uint64_t start_count_;
  int64_t context_;
  uint64_t seed_;
};

// Non-overlapping windows in order, for validation: (size - 1) / T of them, window i at i T.
int64_t sequential_window_count(int64_t size, int64_t context);

// tokens and targets: (starts.size(), T), row-major.
void copy_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                  int32_t* tokens, int32_t* targets);
// The rows windows from `first` on; the caller keeps first + rows within the count.
void copy_sequential_windows(const TokenSource& source, int64_t first, int64_t rows,
                             int64_t context, int32_t* tokens, int32_t* targets);

}  // namespace quern
