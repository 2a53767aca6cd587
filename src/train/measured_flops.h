// Peak FLOP/s of a GPU: the denominator of MFU.
#pragma once

#include "nn/options.h"
#include "train/training_step.h"

namespace quern {

// FLOP/s of a large square matrix product in the given precision, for fp8 in BF16, on the current
// Context's GPU: the best of four. Takes well under a second.
double measure_peak_flops(Precision precision);
// The same between two steps: in new memory, released afterwards, or in the step's memory if none
// is free. 0 if that is too small, and on a CPU: its clock and idle cores change from second to
// second, so steps would exceed 100 % of any such measurement.
double measure_peak_flops(Precision precision, const TrainingStep& step);

}  // namespace quern
