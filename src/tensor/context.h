// Everything a computation runs on: device, stream, library handles, allocators, random numbers,
// and the options that ops read. One Context is current on a thread (ContextScope); without one it
// is a plain CPU Context.
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

// phase: "forward", "backward", "optimizer". module: as the parameters' names have it,
// "model.layers.3", in it "self_attn", in it "qkv_proj". op: "rms_norm"; an op may be made of
// others. (On one line: nvcc takes a line that begins with "module" for a directive.)
enum class RangeKind : uint8_t { phase, module, op };

// A named range of work. Ranges nest.
struct Range {
  RangeKind kind = RangeKind::op;
  const char* name = "";  // valid while the range is open
  // Of an op's backward: the number that InputObserver was given with its forward; else kNoNode.
  uint64_t node = kNoNode;

  static constexpr uint64_t kNoNode = ~uint64_t{0};
};

// Told when a named range of work begins and ends. See RangeScope and ObserveRanges.
class RangeObserver {
 public:
  virtual ~RangeObserver() = default;
  virtual void on_begin(const Range& range) = 0;
  virtual void on_end() = 0;
};

// Told of every op's inputs as it is recorded, within the op's range: their shapes, and the number
// that the range of its backward will carry (Range::kNoNode when it will have none).
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void on_inputs(const char* op, uint64_t node, const std::vector<Shape>& inputs) = 0;
};

// Told of every op's outputs as it is recorded; how a non-finite value is traced to its origin.
class OutputObserver {
 public:
  virtual ~OutputObserver() = default;
  virtual void on_output(const char* op, const Tensor& output) = 0;
};

// Told of the gradient of each output that OutputObserver was shown, before the op's backward runs.
// `order` is what Context::next_node was when the output was shown; the op has `outputs` outputs,
// and this is the gradient of the one at `output`.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  virtual void on_gradient(uint64_t order, int output, int outputs, const Tensor& grad) = 0;
};

class Context {
 public:
  // Throws when the device is not there, or the build has no CUDA code.
  explicit Context(Device device, uint64_t seed = 0);
  // A dry run: memory is addresses alone, and kernels, products and copies return before they
  // start. Allocations are those of `device`, a GPU of these traits, which need not be there.
  // Values read back are zero.
  Context(Device device, const kernels::cuda::DeviceTraits& traits);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  static Context& current();

  Device device() const { return device_; }
  const kernels::cuda::DeviceTraits& traits() const { return traits_; }  // of a GPU
  bool is_dry() const { return dry_; }
  // Memory of `device`: this Context's, or host memory. Throws for another GPU than the Context's.
  const std::shared_ptr<Allocator>& allocator(Device device) const;
  const std::shared_ptr<Allocator>& allocator() const { return device_allocator_; }  // of device()
  kernels::cuda::Stream cuda_stream() const;
  const kernels::GemmResources& gemm() const { return gemm_; }
  void synchronize() const;  // waits for the stream; nothing on the CPU

  // The next n random numbers: a key, and the counter moves on by n.
  kernels::PhiloxKey next_random(int64_t n);

  OpOptions options;
  bool grad_enabled = true;  // see NoGrad in autograd/tape.h
  uint64_t next_node = 0;    // creation order of the tape's nodes

  // The InputObserver, OutputObserver or GradientObserver that is attached, or null.
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
  std::shared_ptr<Allocator> device_allocator_;  // host_ on the CPU
  kernels::GemmResources gemm_;
  std::vector<std::shared_ptr<void>> gemm_parts_;  // that gemm_ points to
  kernels::PhiloxKey random_;
  friend class RangeScope;
  friend class ObserveRanges;
  template <class Observer>
  friend class Observe;
  std::vector<RangeObserver*> range_observers_;  // the latest last; not owned
  std::tuple<InputObserver*, OutputObserver*, GradientObserver*> observers_;  // not owned
};

// Makes a Context current on this thread for its lifetime; scopes nest.
class ContextScope : ScopedValue<Context*> {
 public:
  explicit ContextScope(Context& context);
};

// Attaches an observer of one of Context::observer's types for its lifetime, in place of the
// previous one, which receives only what the new one forwards. Scopes nest.
template <class Observer>
class Observe : public ScopedValue<Observer*> {
 public:
  explicit Observe(Observer& observer)
      : ScopedValue<Observer*>(std::get<Observer*>(Context::current().observers_), &observer) {}
};

// Attaches an observer to the current Context's ranges for its lifetime, beside those that are
// attached already. The latest attached is detached first.
class ObserveRanges {
 public:
  explicit ObserveRanges(RangeObserver& observer);
  ~ObserveRanges();
  ObserveRanges(const ObserveRanges&) = delete;
  ObserveRanges& operator=(const ObserveRanges&) = delete;

 private:
  Context& context_;
};

// Names the work of its lifetime for the attached observers; costs a look at an empty list when
// there is none. An observer attached or detached while the range is open is not told of its end.
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
