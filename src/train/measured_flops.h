// Peak FLOP/s of a GPU: the denominator of MFU.
#pragma once

#include "nn/options.h"

namespace quern {

// FLOP/s of a large square matrix product in the given precision on the current Context's GPU: the
// best of four. Takes well under a second.
double measure_peak_flops(Precision precision);

}  // namespace quern
