// Draws the next token of every row of a batch from its logits, on the device. In this order:
// 1 The repetition penalty (Keskar et al., 2019, as in transformers) applies to tokens seen before:
//   it divides their positive logits and multiplies the others.
// 2 Temperature 0 takes the most likely token. Otherwise a token's weight is
//   exp((logit - largest) / temperature).
// 3 top_k keeps the most likely tokens.
// 4 top_p keeps the shortest run of the most likely of these whose weights reach top_p of their sum
//   (Holtzman et al., 2020).
// 5 min_p keeps those with at least min_p times the largest weight.
// 6 A uniform number picks one of the rest, in the order of their ids.
// Ties go to the lower id. A NaN counts as -inf. Weights are integers (common/sample_math.h), so
// sums are exact, and CPU and GPU draw the same token from the same logits.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct SampleOptions {
  float temperature = 1.0f;         // 0: the most likely token
  int32_t top_k = 0;                // 0: all
  double top_p = 1.0;               // 1: all
  double min_p = 0.0;               // 0: all
  float repetition_penalty = 1.0f;  // 1: none
  uint64_t seed = 1;                // of the row's uniform numbers
};

// Throws naming what is out of range: "sample: top_p is 1.5, expected above 0 and at most 1".
void check_sample_options(const SampleOptions& options);

// The device's state of one row of a generating batch.
struct DecodeRow {
  SampleOptions options;
  uint64_t drawn = 0;   // tokens drawn so far: the index of the next uniform number
  uint64_t posted = 0;  // calls of sample() so far: where the next result goes
  int32_t length = 0;   // tokens whose keys and values are in the cache
  int32_t active = 0;   // 0: the row is left alone
};

inline constexpr int64_t kResultSlots = 4;  // results that can wait for the host

namespace cpu {
// For each active row b: draws from logits (B, V) with uniform number `drawn` of options.seed,
// writes the token to tokens[b] and to results[posted % kResultSlots][b], marks it in `seen`, and
// increments `drawn` and `length`. Inactive rows get the token 0 and the result -1. `posted` is
// incremented for all rows. seen (B, ceil(V / 32)): one bit for each token of the row's prompt and
// result. results (kResultSlots, B) may be pinned host memory. T: float, bfloat16.
template <class T>
void sample(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen, const T* logits,
            int64_t B, int64_t V, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void sample(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen, const T* logits,
            int64_t B, int64_t V, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
