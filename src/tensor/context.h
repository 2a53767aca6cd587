// Everything a computation runs on: device, stream, library handles, allocators, random numbers,
// and the switches that ops read. One Context is current on a thread (ContextScope); without one it
// is a plain CPU Context.
#pragma once

#include <cstdint>
#include <memory>

#include "base/device.h"
#include "base/stream.h"
#include "kernels/gemm.h"
#include "kernels/random.h"
#include "tensor/allocator.h"

namespace quern {

class Tensor;

// Told when a named range of work begins and ends: phases, modules, ops. See RangeScope.
class RangeObserver {
 public:
  virtual ~RangeObserver() = default;
  virtual void on_begin(const char* name) = 0;
  virtual void on_end() = 0;
};

// Told of every op's outputs as it is recorded; how a non-finite value is traced to its origin.
class OutputObserver {
 public:
  virtual ~OutputObserver() = default;
  virtual void on_output(const char* op, const Tensor& output) = 0;
};

class Context {
 public:
  // Throws when the device is not there, or the build has no CUDA code.
  explicit Context(Device device, uint64_t seed = 0);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static Context& current();

  Device device() const { return device_; }
  // Memory of `device`: this Context's, or host memory. Throws for another GPU than the Context's.
  const std::shared_ptr<Allocator>& allocator(Device device) const;
  kernels::cuda::Stream cuda_stream() const { return kernels::cuda::Stream{stream_}; }
  const kernels::GemmResources& gemm() const { return gemm_; }
  void synchronize() const;  // waits for the stream; nothing on the CPU

  // The next n random numbers: a key, and the counter moves on by n.
  kernels::PhiloxKey next_random(int64_t n);

  kernels::MatmulMath matmul_math =
      kernels::MatmulMath::fp32;              // how FP32 matrix products are computed
  bool split_products = true;                 // see kernels::Gemm::split
  bool deterministic = true;                  // false: sums may be taken in any order
  bool grad_enabled = true;                   // see NoGrad in autograd/tape.h
  uint64_t next_node = 0;                     // creation order of the tape's nodes
  RangeObserver* range_observer = nullptr;    // not owned
  OutputObserver* output_observer = nullptr;  // not owned

 private:
  Device device_;
  void* stream_ = nullptr;
  kernels::GemmResources gemm_;
  std::shared_ptr<Allocator> host_;
  std::shared_ptr<Allocator> device_allocator_;  // host_ on the CPU
  kernels::PhiloxKey random_;
};

// Makes a Context current on this thread for its lifetime; scopes nest.
class ContextScope {
 public:
  explicit ContextScope(Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Context* previous_;
};

// Names the work of its lifetime for an attached observer; costs a null check when there is none.
class RangeScope {
 public:
  explicit RangeScope(const char* name) : observer_(Context::current().range_observer) {
    if (observer_) observer_->on_begin(name);
  }
  ~RangeScope() {
    if (observer_) observer_->on_end();
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  RangeObserver* observer_;
};

}  // namespace quern
