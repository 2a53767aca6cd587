#include "train/batch_feeder.h"

#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

HostAllocator host_memory_for(Device device) {
  if (!device.is_cuda()) return ordinary_host_memory();
  return {cuda::pinned_allocate, cuda::pinned_release};
}

}  // namespace

BatchFeeder::BatchFeeder(const TokenSource& source, int64_t batch, int64_t context,
                         SamplerState first)
    : loader_(source, batch, context, first, host_memory_for(Context::current().device())) {
  const Device device = Context::current().device();
  for (DeviceBatch& buffer : buffers_) {
    buffer.tokens = Tensor::empty({batch, context}, DType::i32, "batch tokens");
    buffer.targets = Tensor::empty({batch, context}, DType::i32, "batch targets");
  }
  if (device.is_cuda()) {
    for (void*& event : copied_) event = cuda::create_event(false);
  }
}

BatchFeeder::~BatchFeeder() {
  for (void* event : copied_) {
    if (!event) continue;
    cuda::synchronize_event(event);
    cuda::destroy_event(event);
  }
}

DeviceBatch BatchFeeder::next() {
  const Context& context = Context::current();
  turn_ ^= 1;
  // The loader keeps a host batch until the second next() after it: that one's copy must be done.
  if (copied_[turn_]) cuda::synchronize_event(copied_[turn_]);
  const Batch host = loader_.next();
  DeviceBatch& buffer = buffers_[turn_];
  buffer.index = host.index;
  const int64_t bytes = buffer.tokens.bytes();
  if (!context.device().is_cuda()) {
    std::copy_n(host.tokens, buffer.tokens.numel(), buffer.tokens.data<int32_t>());
    std::copy_n(host.targets, buffer.targets.numel(), buffer.targets.data<int32_t>());
    return buffer;
  }
  void* stream = context.cuda_stream().handle;
  cuda::copy(buffer.tokens.raw_data(), host.tokens, bytes, stream);
  cuda::copy(buffer.targets.raw_data(), host.targets, bytes, stream);
  cuda::record_event(copied_[turn_], stream);
  return buffer;
}

}  // namespace quern
