#include "train/batch_feeder.h"

#include <algorithm>

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
                         SamplerState first, const BatchOptions& options)
    : loader_(source, batch, context, first, host_memory_for(Context::current().device()),
              options) {
  for (DeviceBatch& buffer : buffers_) {
    buffer.tokens = Tensor::empty({batch, context}, DType::i32, "batch tokens");
    buffer.targets = Tensor::empty({batch, context}, DType::i32, "batch targets");
  }
  if (!Context::current().device().is_cuda()) return;
  stream_ = cuda::create_stream();
  for (size_t turn : {0, 1}) {
    copied_[turn] = cuda::create_event(false);
    used_[turn] = cuda::create_event(false);
  }
}

BatchFeeder::~BatchFeeder() {
  if (!stream_) return;
  for (size_t turn : {0, 1}) {
    cuda::synchronize_event(copied_[turn]);
    cuda::destroy_event(copied_[turn]);
    cuda::destroy_event(used_[turn]);
  }
  cuda::destroy_stream(stream_);
}

// The loader keeps a host batch until the second next() after it, which is when this buffer's turn
// comes again: its earlier copy must be done by then.
void BatchFeeder::start_copy(size_t turn) {
  if (stream_) cuda::synchronize_event(copied_[turn]);
  const Batch host = loader_.next();
  DeviceBatch& buffer = buffers_[turn];
  buffer.index = host.index;
  if (!stream_) {
    std::copy_n(host.tokens, buffer.tokens.numel(), buffer.tokens.data<int32_t>());
    std::copy_n(host.targets, buffer.targets.numel(), buffer.targets.data<int32_t>());
    return;
  }
  cuda::record_event(used_[turn], Context::current().cuda_stream().handle);
  cuda::wait_event(stream_, used_[turn]);
  cuda::copy(buffer.tokens.raw_data(), host.tokens, buffer.tokens.bytes(), stream_);
  cuda::copy(buffer.targets.raw_data(), host.targets, buffer.targets.bytes(), stream_);
  cuda::record_event(copied_[turn], stream_);
}

// On a GPU the batch after this one sets out too. On the CPU nothing would overlap.
DeviceBatch BatchFeeder::next() {
  if (!stream_ || !started_) start_copy(turn_);
  started_ = true;
  const DeviceBatch batch = buffers_[turn_];
  const size_t now = turn_;
  turn_ ^= 1;
  if (!stream_) return batch;
  cuda::wait_event(Context::current().cuda_stream().handle, copied_[now]);
  start_copy(turn_);
  return batch;
}

}  // namespace quern
