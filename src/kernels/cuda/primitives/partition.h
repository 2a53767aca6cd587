// The part of a GPU that the work on a stream may use.
#pragma once

#include "base/stream.h"

namespace quern::kernels::cuda {

// Multiprocessors of the stream's context. A green context, or a share under MPS, has fewer than
// the device's attribute says. A driver without this query counts as a whole device.
int multiprocessors_of(Stream stream);

}  // namespace quern::kernels::cuda
