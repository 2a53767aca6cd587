// Replaces the CUDA runtime in a build without it, for cuda_runtime.cpp: there is no device, and
// every other call throws.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace quern::cuda {

using cudaError_t = int;
using cudaStream_t = void*;
using cudaEvent_t = void*;
using cudaGraph_t = void*;
using cudaGraphExec_t = void*;

enum { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorNotReady };
enum { cudaStreamNonBlocking, cudaStreamCaptureModeRelaxed, cudaMemcpyDefault };
enum { cudaEventDefault, cudaEventDisableTiming };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
enum cudaDeviceAttr { cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth };

struct cudaDeviceProp {
  const char* name;
  int major, minor, multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};

struct NoCuda {
  template <class... Arguments>
  cudaError_t operator()(const Arguments&...) const {
    fail(
        "cuda: this build has no CUDA code; build with QUERN_CUDA=ON or choose device = cpu "
        "(--device cpu)");
  }
};

inline constexpr NoCuda cudaGetDeviceProperties, cudaDeviceGetAttribute, cudaGetDevice,
    cudaSetDevice, cudaMemGetInfo, cudaRuntimeGetVersion, cudaDriverGetVersion, cudaMalloc,
    cudaFree, cudaMallocHost, cudaFreeHost, cudaStreamCreateWithFlags, cudaStreamDestroy,
    cudaStreamSynchronize, cudaDeviceSynchronize, cudaMemcpyAsync, cudaMemsetAsync,
    cudaEventCreateWithFlags, cudaEventDestroy, cudaEventRecord, cudaStreamWaitEvent,
    cudaEventSynchronize, cudaEventQuery, cudaEventElapsedTime, cudaStreamBeginCapture,
    cudaStreamEndCapture, cudaStreamIsCapturing, cudaGraphInstantiate, cudaGraphDestroy,
    cudaGraphLaunch, cudaGraphExecDestroy, cudaProfilerStart, cudaProfilerStop, nvtxRangePushA,
    nvtxRangePop;

inline cudaError_t cudaGetDeviceCount(int* /*count*/) {
  return cudaErrorNotReady;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t /*status*/) {
  return "";
}

}  // namespace quern::cuda
