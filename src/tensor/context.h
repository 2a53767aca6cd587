// The resources of a computation: device, stream, library handles, allocators, random numbers, and
// the options of ops. One Context is current per thread (ContextScope); the default is a plain CPU
// Context.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/scoped_value.h"
#include "base/shape.h"
#include "base/stream.h"
#include "kernels/device_traits.h"
#include "kernels/gemm.h"
#include "kernels/random.h"
#include "tensor/allocator.h"
#include "tensor/cuda_runtime.h"
#include "tensor/op_options.h"

namespace quern {

class Tensor;

// phase: "forward", "backward", "optimizer". module: as in parameter names, "model.layers.3", in it
// "self_attn", in that "qkv_proj". op: "rms_norm"; an op may contain others.
// (The enumerators share a line: nvcc takes a line that begins with "module" for a directive.)
enum class RangeKind : uint8_t { phase, module, op };

// A named range of work. Ranges nest.
struct Range {
  RangeKind kind = RangeKind::op;
  const char* name = "";  // valid while the range is open
  // For an op's backward: the number that InputObserver got with its forward; else kNoNode.
  uint64_t node = kNoNode;

  static constexpr uint64_t kNoNode = ~uint64_t{0};
};

// Receives the begin and end of named ranges of work. See RangeScope and ObserveRanges.
class RangeObserver {
 public:
  virtual ~RangeObserver() = default;
  virtual void on_begin(const Range& range) = 0;
  virtual void on_end() = 0;
};

// Receives the shapes of every op's inputs when it is recorded, within the op's range. `node` is
// the number that the range of its backward will carry, or Range::kNoNode without a backward.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void on_inputs(const char* op, uint64_t node, const std::vector<Shape>& inputs) = 0;
};

// Receives every op's outputs when it is recorded, to trace a non-finite value to its origin.
class OutputObserver {
 public:
  virtual ~OutputObserver() = default;
  virtual void on_output(const char* op, const Tensor& output) = 0;
};

// Receives the gradient of each output that OutputObserver received, before the op's backward runs.
// `order` is Context::next_node at the time of OutputObserver's call; `output` is the index of the
// output among the op's `outputs`.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  virtual void on_gradient(uint64_t order, int output, int outputs, const Tensor& grad) = 0;
};

class Context {
 public:
  // Throws when the device does not exist, or the build has no CUDA code.
  explicit Context(Device device, uint64_t seed = 0);
  // A dry run: allocations are addresses without memory, and kernels, products and copies do
  // nothing. The allocations are those of a run on `device`, a GPU with these traits, which need
  // not exist. Values read back are zero.
  Context(Device device, const kernels::cuda::DeviceTraits& traits);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static Context& current();

  Device device() const { return device_; }
  const kernels::cuda::DeviceTraits& traits() const { return traits_; }  // of a GPU
  bool is_dry() const { return dry_; }
  // The allocator of `device`: the host's or this Context's. Throws for another GPU.
  const std::shared_ptr<Allocator>& allocator(Device device) const;
  const std::shared_ptr<Allocator>& allocator() const { return device_allocator_; }  // of device()
  // Allocator of pinned host memory, which the device reads and writes over the bus.
  const std::shared_ptr<Allocator>& offload_allocator() const { return offload_allocator_; }
  kernels::cuda::Stream cuda_stream() const;
  const kernels::GemmResources& gemm() const { return gemm_; }
  void synchronize() const;  // waits for the stream; nothing on the CPU

  // The key of the next n random numbers; advances the counter by n.
  kernels::PhiloxKey next_random(int64_t n);

  OpOptions options;
  bool grad_enabled = true;   // see NoGrad in autograd/tape.h
  bool fp8_products = false;  // see Fp8Products in autograd/ops/fp8.h
  uint64_t next_node = 0;     // creation order of the tape's nodes

  // The attached InputObserver, OutputObserver or GradientObserver, or null.
  template <class Observer>
  Observer* observer() const {
    return std::get<Observer*>(observers_);
  }

 private:
  void take_gemm_workspace();

  Device device_;
  kernels::cuda::DeviceTraits traits_;
  bool dry_ = false;
  cuda::OwnedStream stream_;  // none on the CPU
  std::shared_ptr<Allocator> host_;
  std::shared_ptr<Allocator> device_allocator_, offload_allocator_;  // host_ on the CPU
  kernels::GemmResources gemm_;
  std::vector<std::shared_ptr<void>> gemm_parts_;  // the owned objects that gemm_ points to
  kernels::PhiloxKey random_;
  friend class RangeScope;
  friend class ObserveRanges;
  template <class Observer>
  friend class Observe;
  std::vector<RangeObserver*> range_observers_;  // the latest last; not owned
  std::tuple<InputObserver*, OutputObserver*, GradientObserver*> observers_;  // not owned
};

// Makes a Context, and its GPU, current on this thread for its lifetime; scopes nest.
class ContextScope : ScopedValue<Context*> {
 public:
  explicit ContextScope(Context& context);
  ~ContextScope();
};

// Attaches an observer of one of Context::observer's types for its lifetime, in place of the
// previous one, which receives only forwarded calls. Scopes nest.
template <class Observer>
class Observe : public ScopedValue<Observer*> {
 public:
  explicit Observe(Observer& observer)
      : ScopedValue<Observer*>(std::get<Observer*>(Context::current().observers_), &observer) {}
};

// Attaches an observer to the current Context's ranges for its lifetime, beside those already
// attached. Observers are detached in reverse order.
class ObserveRanges {
 public:
  explicit ObserveRanges(RangeObserver& observer);
  ~ObserveRanges();
  ObserveRanges(const ObserveRanges&) = delete;
  ObserveRanges& operator=(const ObserveRanges&) = delete;

 private:
  Context& context_;
};

// Names the work of its lifetime for the attached observers; without any it only checks an empty
// list. An observer attached or detached while the range is open does not receive its end.
class RangeScope {
 public:
  explicit RangeScope(const char* op) : RangeScope(Range{RangeKind::op, op}) {}
  RangeScope(RangeKind kind, const char* name) : RangeScope(Range{kind, name}) {}
  explicit RangeScope(const Range& range)
      : context_(Context::current()), observers_(context_.range_observers_.size()) {
    for (size_t i = 0; i < observers_; ++i) context_.range_observers_[i]->on_begin(range);
  }
  ~RangeScope() {
    const size_t left = std::min(observers_, context_.range_observers_.size());
    for (size_t i = left; i-- > 0;) context_.range_observers_[i]->on_end();
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  Context& context_;
  size_t observers_;  // attached when the range began
};

}  // namespace quern
