// Selects the windows of a corpus for each batch. A window at `start` has inputs
// [start, start + T) and targets shifted by one, so it covers T + 1 tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "data/dataset.h"

namespace quern {

// The order of the training windows. random: drawn with replacement. permutation: each
// non-overlapping window once an epoch.
enum class Sampling { random, permutation };

// The complete state of a sampler: draw n is a pure function of (seed, n).
struct SamplerState {
  uint64_t seed = 1;
  uint64_t draw = 0;  // the next one: the number of windows drawn so far

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// Draws windows uniformly, with replacement, from the size - T starts. Counter-based (Philox), so a
// draw does not depend on earlier draws.
class RandomSampler {
 public:
  // size: tokens of the corpus. Throws when the corpus has no whole window.
  RandomSampler(int64_t size, int64_t context, uint64_t seed);

  // Sets starts[i] to the start of draw first + i.
  void draw(uint64_t first, std::span<int64_t> starts) const;

 private:
  uint64_t start_count_, seed_;
};

// Draws each of the W = (size - 1) / T non-overlapping windows once an epoch, in a new order per
// epoch. Draw n is window n % W of epoch n / W, so a batch may span two epochs. If T does not
// divide size - 1, each epoch has its own random offset, so that no token is always left out. A
// pure function of (seed, n), as above.
class PermutationSampler {
 public:
  PermutationSampler(int64_t size, int64_t context, uint64_t seed);

  void draw(uint64_t first, std::span<int64_t> starts) const;  // see RandomSampler

  int64_t windows() const { return static_cast<int64_t>(windows_); }  // W, in an epoch
  // The position of window i of an epoch, 0 to W - 1, and the start of the epoch's first window.
  uint64_t permuted(uint64_t epoch, uint64_t i) const;
  int64_t offset(uint64_t epoch) const;

 private:
  uint64_t windows_, offsets_;
  int64_t context_;
  uint64_t seed_;
  int half_bits_;  // of the Feistel network
};

// The function draw() of the given kind of sampler.
using DrawWindows = std::function<void(uint64_t first, std::span<int64_t> starts)>;
DrawWindows make_sampler(Sampling sampling, int64_t size, int64_t context, uint64_t seed);

// The number of non-overlapping windows, for validation: (size - 1) / T. Window i begins at i T.
int64_t sequential_window_count(int64_t size, int64_t context);

// tokens and targets: (starts.size(), T), row-major.
void copy_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                  int32_t* tokens, int32_t* targets);
// Throws naming file and place of the first token >= vocab_size in windows copied from `starts`.
void check_windows(const TokenSource& source, std::span<const int64_t> starts, int64_t context,
                   const int32_t* tokens, const int32_t* targets, int64_t vocab_size);
// A target that the loss ignores: autograd's kIgnoreIndex.
inline constexpr int32_t kNoTarget = -100;
// Replaces every target whose input is `end_token` by kNoTarget: the next document's first token
// does not follow from the previous document. Returns the number of targets that count.
int64_t mask_document_starts(std::span<const int32_t> tokens, std::span<int32_t> targets,
                             int32_t end_token);

}  // namespace quern
