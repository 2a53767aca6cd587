// The rate that MFU is a share of.
#pragma once

#include "nn/options.h"

namespace quern {

// FLOP/s of a large square matrix product in the precision's own form on the current Context's
// device, measured now: the best of a few. Takes well under a second.
double measure_peak_flops(Precision precision);

}  // namespace quern
