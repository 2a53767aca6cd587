// The shared window of the address space.
#pragma once

#include <cstdint>

namespace quern::kernels::cuda {

// The address of a shared-memory object in the shared window, as PTX takes it.
__device__ __forceinline__ uint32_t shared_address(const void* object) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(object));
}

}  // namespace quern::kernels::cuda
