#include "tensor/context.h"

#include "base/error.h"
#ifdef QUERN_WITH_CUDA
#include "kernels/cuda/gemm/gemm_handle.h"
#endif

namespace quern {

namespace {

// cuBLASLt's guide recommends 32 MiB on Hopper.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

thread_local Context* current_context = nullptr;

// Shows the ranges in NVIDIA's profilers. Without a profiler, a call is a null check in NVTX.
class NvtxRanges : public RangeObserver {
 public:
  void on_begin(const Range& range) override { cuda::push_range(range.name); }
  void on_end() override { cuda::pop_range(); }
};

NvtxRanges nvtx_ranges;

// CUDA has a current GPU for each thread.
void select_gpu(const Context* context) {
  if (context && context->device().is_cuda() && !context->is_dry()) {
    cuda::set_device(context->device().index);
  }
}

}  // namespace

Context::Context(Device device, uint64_t seed)
    : device_(device), host_(std::make_shared<Allocator>(host_memory())), random_{seed, 0} {
  if (!device.is_cuda()) {
    device_allocator_ = offload_allocator_ = host_;
    return;
  }
  QUERN_CHECK(kBuiltWithCuda,
              "device = cuda: this build has no CUDA code; build with "
              "QUERN_CUDA=ON or choose device = cpu (--device cpu)");
  const int count = cuda::device_count();
  QUERN_CHECK(count > 0, "device = cuda: no GPU was found; choose device = cpu (--device cpu)");
  QUERN_CHECK(device.index >= 0 && device.index < count, "device = cuda:", device.index,
              ": expected an index below ", count);
  cuda::set_device(device.index);
  stream_ = cuda::OwnedStream::create();
  device_allocator_ =
      std::make_shared<Allocator>(device_memory(device.index), cuda_stream(), device_event);
  offload_allocator_ = std::make_shared<Allocator>(pinned_memory(), cuda_stream(), device_event);
  range_observers_.push_back(&nvtx_ranges);
#ifdef QUERN_WITH_CUDA
  traits_ = kernels::cuda::query_device_traits();
  const auto own = [&](auto* part, const auto& release) {
    gemm_parts_.emplace_back(part, release);
    return part;
  };
  gemm_.handle = own(kernels::cuda::create_gemm_handle(), kernels::cuda::destroy_gemm_handle);
  take_gemm_workspace();
  gemm_.algorithms =
      own(kernels::cuda::create_gemm_algorithms(), kernels::cuda::destroy_gemm_algorithms);
#endif
}

Context::Context(Device device, const kernels::cuda::DeviceTraits& traits)
    : device_(device),
      traits_(traits),
      dry_(true),
      host_(std::make_shared<Allocator>(no_memory(cat(kCpu)))),
      device_allocator_(host_),
      offload_allocator_(host_) {
  if (!device.is_cuda()) return;
  device_allocator_ = std::make_shared<Allocator>(no_memory(cat(device)));
  offload_allocator_ = std::make_shared<Allocator>(no_memory("the host"));
  take_gemm_workspace();
}

Context& Context::current() {
  if (current_context) return *current_context;
  thread_local Context plain_cpu{kCpu};
  return plain_cpu;
}

const std::shared_ptr<Allocator>& Context::allocator(Device device) const {
  if (!device.is_cuda()) return host_;
  QUERN_CHECK(device == device_, "a tensor on ", device, " was asked for in a context of ",
              device_);
  return device_allocator_;
}

kernels::cuda::Stream Context::cuda_stream() const {
  kernels::cuda::Stream stream = stream_;
  stream.traits = &traits_;
  return stream;
}

void Context::take_gemm_workspace() {
  gemm_.workspace = device_allocator_->allocate(kGemmWorkspaceBytes,
                                                {"gemm workspace", MemoryCategory::workspace});
  gemm_.workspace_bytes = kGemmWorkspaceBytes;
  gemm_parts_.emplace_back(gemm_.workspace, [allocator = device_allocator_](void* workspace) {
    allocator->release(workspace);
  });
}

void Context::synchronize() const {
  if (device_.is_cuda() && !dry_) cuda::synchronize(stream_);
}

kernels::PhiloxKey Context::next_random(int64_t n) {
  const kernels::PhiloxKey key = random_;
  random_.offset += static_cast<uint64_t>(n);
  return key;
}

ObserveRanges::ObserveRanges(RangeObserver& observer) : context_(Context::current()) {
  context_.range_observers_.push_back(&observer);
}

ObserveRanges::~ObserveRanges() {
  context_.range_observers_.pop_back();
}

ContextScope::ContextScope(Context& context) : ScopedValue(current_context, &context) {
  select_gpu(&context);
}

ContextScope::~ContextScope() {
  try {
    select_gpu(previous());
  } catch (const Error&) {  // the GPU has failed; its next call says so
  }
}

}  // namespace quern
