// GPU properties that determine scratch sizes and choices between kernels. Plain C++ in every
// build, because memory is also predicted for absent GPUs.
#pragma once

#include "base/device.h"
#include "base/error.h"
#include "base/stream.h"

namespace quern::kernels::cuda {

struct DeviceTraits {
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;  // the most that a block may opt in to
  bool hopper_code = false;        // this build's code for compute capability 9.0 runs on it
};

DeviceTraits query_device_traits();  // of the current device; only in a build with CUDA code

inline DeviceTraits traits_of(Stream stream) {
  if (stream.traits != nullptr) return *stream.traits;
  if constexpr (kBuiltWithCuda) return query_device_traits();
  fail("cuda: the stream has no traits");
}

inline constexpr DeviceTraits kHopper{132, 227 << 10, true};  // H100 SXM and H200

}  // namespace quern::kernels::cuda
