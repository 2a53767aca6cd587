// The FP32 weights that an optimizer updates. Under bf16 each weight is stored in two parts; ops
// read one of them.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/common/weight_parts.h"

namespace quern::kernels {

// The weights of an arena: in FP32, or in two parts with the same offsets.
struct WeightArrays {
  float* values = nullptr;     // null: the weights are those of copies and low
  bfloat16* copies = nullptr;  // rounded_weight of each; null beside values
  uint16_t* low = nullptr;     // low_part of each; null beside values
};

// A run of weights, and where their FP32 values go.
struct WeightRun {
  int64_t begin = 0, to = 0, count = 0;  // elements
};

namespace cpu {
// The parts of n weights, or with a null `low` the copies alone.
void split_weights(bfloat16* copies, uint16_t* low, const float* weights, int64_t n, Stream stream);
void join_weights(float* weights, const bfloat16* copies, const uint16_t* low, int64_t n,
                  Stream stream);
// The same for many short runs, in a table on the device.
void join_runs(float* weights, const bfloat16* copies, const uint16_t* low, const WeightRun* runs,
               int64_t count, Stream stream);
}  // namespace cpu

namespace cuda {
void split_weights(bfloat16* copies, uint16_t* low, const float* weights, int64_t n, Stream stream);
void join_weights(float* weights, const bfloat16* copies, const uint16_t* low, int64_t n,
                  Stream stream);
void join_runs(float* weights, const bfloat16* copies, const uint16_t* low, const WeightRun* runs,
               int64_t count, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
