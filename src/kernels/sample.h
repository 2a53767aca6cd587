// The next token of every row of a batch, drawn from its logits on the device. In this order:
// 1 the repetition penalty (Keskar et al., 2019, as transformers has it): the logits of tokens seen
//   before are divided by it where positive and multiplied by it elsewhere;
// 2 temperature 0 takes the likeliest token, else each has the weight exp((logit - largest) /
//   temperature);
// 3 the top_k likeliest are kept;
// 4 of these the shortest run of likeliest ones whose weights sum to top_p of theirs (Holtzman et
//   al., 2020);
// 5 of these the ones with at least min_p of the likeliest one's weight;
// 6 a uniform number picks one of those left, which stand in the order of their ids.
// Of equally likely tokens the lower id is the likelier one. A NaN counts as -inf. Weights are
// integers (common/sample_math.h), so that every sum is exact, and CPU and GPU draw the same token
// from the same logits.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct SampleOptions {
  float temperature = 1.0f;         // 0: the likeliest
  int32_t top_k = 0;                // 0: all
  double top_p = 1.0;               // 1: all
  double min_p = 0.0;               // 0: all
  float repetition_penalty = 1.0f;  // 1: none
  uint64_t seed = 1;                // of the row's uniform numbers
};

// Throws naming what is out of range: "sample: top_p is 1.5, expected above 0 and at most 1".
void check_sample_options(const SampleOptions& options);

// What the device knows of a row of a batch that generates.
struct DecodeRow {
  SampleOptions options;
  uint64_t drawn = 0;   // tokens drawn so far: the index of the next uniform number
  uint64_t posted = 0;  // calls of sample() so far: where the next result goes
  int32_t length = 0;   // tokens whose keys and values are in the cache
  int32_t active = 0;   // 0: the row is left alone
};

inline constexpr int64_t kResultSlots = 4;  // results that may wait for the host

namespace cpu {
// Of each active row b: draws from logits (B, V) with uniform number `drawn` of options.seed,
// writes the token to tokens[b] and to results[posted % kResultSlots][b], marks it in `seen` and
// counts it in `drawn` and `length`. Of the others: 0 and -1. Counts `posted` of all. seen (B,
// ceil(V / 32)): a bit for each token of the row's prompt and result. results (kResultSlots, B) may
// be pinned host memory. T: float, bfloat16.
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
