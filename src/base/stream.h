// The last argument of every kernel; its type picks the backend. A call f(y, x, n, stream) finds
// kernels::cpu::f or kernels::cuda::f by the namespace of its stream (argument-dependent lookup),
// so an op names each kernel once.
#pragma once

namespace quern::kernels {

namespace cpu {
struct Stream {};  // kernels run at the call, on all cores
}  // namespace cpu

namespace cuda {
struct DeviceTraits;  // kernels/device_traits.h
struct Stream {
  void* handle = nullptr;                // a cudaStream_t
  const DeviceTraits* traits = nullptr;  // those of its GPU; owned by the Context
};
}  // namespace cuda

}  // namespace quern::kernels
