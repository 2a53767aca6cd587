#include "train/batch_feeder.h"

#include <algorithm>

#include "tensor/context.h"

namespace quern {

BatchFeeder::BatchFeeder(const TokenSource& source, int64_t batch, int64_t context,
                         SamplerState first, const BatchOptions& options)
    : loader_(
          source, batch, context, first,
          [pinned = Context::current().device().is_cuda()](int64_t bytes) -> std::shared_ptr<void> {
            return cuda::host_array<std::byte>(bytes, pinned);
          },
          options) {
  for (DeviceBatch& buffer : buffers_) {
    buffer.tokens = Tensor::empty({batch, context}, DType::i32, "batch tokens");
    buffer.targets = Tensor::empty({batch, context}, DType::i32, "batch targets");
  }
  if (!Context::current().device().is_cuda()) return;
  stream_ = cuda::OwnedStream::create();
  for (cuda::Event& copied : copied_) copied = cuda::Event(cuda::EventKind::order);
  free_ = cuda::Event(cuda::EventKind::order);
}

BatchFeeder::~BatchFeeder() {
  stream_.finish();  // before the loader's buffers are released
}

// The loader keeps a host batch until the second next() after it, at this buffer's next turn. Its
// earlier copy must be done by then.
void BatchFeeder::start_copy(size_t turn) {
  if (stream_) copied_[turn].synchronize();
  const Batch host = loader_.next();
  DeviceBatch& buffer = buffers_[turn];
  buffer.counted = host.counted;
  if (!stream_) {
    std::copy_n(host.tokens, buffer.tokens.numel(), buffer.tokens.data<int32_t>());
    std::copy_n(host.targets, buffer.targets.numel(), buffer.targets.data<int32_t>());
    return;
  }
  free_.record(Context::current().cuda_stream());
  free_.wait(stream_);
  cuda::copy(buffer.tokens.raw_data(), host.tokens, buffer.tokens.bytes(), stream_);
  cuda::copy(buffer.targets.raw_data(), host.targets, buffer.targets.bytes(), stream_);
  copied_[turn].record(stream_);
}

// On a GPU this also starts the copy of the next batch. On the CPU nothing would overlap.
DeviceBatch BatchFeeder::next() {
  if (!stream_ || !started_) start_copy(turn_);
  started_ = true;
  const DeviceBatch batch = buffers_[turn_];
  const size_t now = turn_;
  turn_ ^= 1;
  if (!stream_) return batch;
  copied_[now].wait(Context::current().cuda_stream());
  start_copy(turn_);
  return batch;
}

}  // namespace quern
