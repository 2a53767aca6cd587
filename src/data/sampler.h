// Which windows of a corpus make a batch. A window at `start` is the inputs [start, start + T) and
// the targets one further, so it covers T + 1 tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "data/dataset.h"

namespace quern {

// In which order the windows of a corpus are trained on. random: drawn with replacement.
// permutation: each non-overlapping window once an epoch.
enum class Sampling { random, permutation };

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

 private:
  uint64_t start_count_, seed_;
};

// Each of the (size - 1) / T non-overlapping windows once an epoch, in an order of its own: draw n
// is window n % W of epoch n / W, so a batch may begin in one epoch and end in the next. Where T
// does not divide size - 1, each epoch's windows begin at an offset of its own, so that no token is
// left out for good. A pure function of (seed, n), as above.
class PermutationSampler {
 public:
  PermutationSampler(int64_t size, int64_t context, uint64_t seed);

  void draw(uint64_t batch, std::span<int64_t> starts) const;  // as RandomSampler's

  int64_t windows() const { return static_cast<int64_t>(windows_); }  // W, in an epoch
  // The place of window i of an epoch, 0 to W - 1, and where the windows of an epoch begin.
  uint64_t permuted(uint64_t epoch, uint64_t i) const;
  int64_t offset(uint64_t epoch) const;

 private:
  uint64_t windows_, offsets_;
  int64_t context_;
  uint64_t seed_;
  int half_bits_;  // of the Feistel network
};

// starts of the rows of a batch, by the sampler of that kind.
using DrawWindows = std::function<void(uint64_t batch, std::span<int64_t> starts)>;
DrawWindows make_sampler(Sampling sampling, int64_t size, int64_t context, uint64_t seed);

// Non-overlapping windows in order, for validation: (size - 1) / T of them, window i at i T.
int64_t sequential_window_count(int64_t size, int64_t context);

// tokens and targets: (starts.size(), T), row-major.
void copy_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                  int32_t* tokens, int32_t* targets);
// What a target is that does not count: autograd's kIgnoreIndex.
inline constexpr int32_t kNoTarget = -100;
// Makes kNoTarget of every target whose input is `end_token`: the first token of the next document,
// of which the one before says nothing. Returns how many targets count.
int64_t mask_document_starts(std::span<const int32_t> tokens, std::span<int32_t> targets,
                             int32_t end_token);

// The rows windows from `first` on; the caller keeps first + rows within the count.
void copy_sequential_windows(const TokenSource& source, int64_t first, int64_t rows,
                             int64_t context, int32_t* tokens, int32_t* targets);

}  // namespace quern
