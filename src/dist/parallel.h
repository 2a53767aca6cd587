// How several ranks share a training: the configuration key `parallel`.
#pragma once

#include "base/enum_names.h"

namespace quern {

// The part of the model that each rank holds (docs/several-gpus.md). ddp: everything. zero1: only a
// share of the optimizer's state and of the FP32 weights. zero2: also only a share of the summed
// gradients. fsdp: also a block's weights only while they are used.
enum class Parallel { automatic, none, ddp, zero1, zero2, fsdp };

template <>
inline constexpr std::array kNamesOf<Parallel>{"auto", "none", "ddp", "zero1", "zero2", "fsdp"};

// Whether ranks have shares of the FP32 weights and of the optimizer's state.
inline bool shares_out(Parallel parallel) {
  return parallel == Parallel::zero1 || parallel == Parallel::zero2 || parallel == Parallel::fsdp;
}

}  // namespace quern
