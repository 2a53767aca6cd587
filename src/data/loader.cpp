#include "data/loader.h"

#include <utility>

#include "base/error.h"

namespace quern {

namespace {

// The last two batches returned stay valid (see next()); the other slots are filled ahead.
constexpr uint64_t kHeld = 2;
constexpr uint64_t kAhead = 2;
constexpr uint64_t kSlots = kHeld + kAhead;

BatchLoader::Fill drawn_windows(TokenSource source, int64_t rows, int64_t context, uint64_t seed,
                                const BatchOptions& options) {
  const DrawWindows draw = make_sampler(options.sampling, source.size(), context, seed);
  const auto count = static_cast<size_t>(rows * context);
  return [=, end = options.document_end, vocabulary = options.vocabulary,
          starts = std::vector<int64_t>(static_cast<size_t>(rows))](uint64_t k, int32_t* tokens,
                                                                    int32_t* targets) mutable {
    draw(k, starts);
    copy_windows(source, starts, context, tokens, targets);
    if (vocabulary > 0) check_windows(source, starts, context, tokens, targets, vocabulary);
    if (end) mask_document_starts({tokens, count}, {targets, count}, *end);
  };
}

}  // namespace

std::shared_ptr<void> ordinary_host_memory(int64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

BatchLoader::BatchLoader(TokenSource source, int64_t rows, int64_t context, SamplerState first,
                         const HostMemory& memory, const BatchOptions& options)
    : BatchLoader(drawn_windows(std::move(source), rows, context, first.seed, options), rows,
                  context, first, memory, options.stride) {}

BatchLoader::BatchLoader(Fill fill, int64_t rows, int64_t context, SamplerState first,
                         const HostMemory& memory, uint64_t stride)
    : fill_(std::move(fill)), rows_(rows), context_(context), first_(first), stride_(stride) {
  QUERN_CHECK(rows > 0 && context > 0, "loader: a batch of (", rows, ", ", context,
              ") tokens, expected at least (1, 1)");
  const int64_t count = rows * context;
  const auto bytes = static_cast<int64_t>(2 * kSlots * sizeof(int32_t)) * count;
  buffer_ = memory(bytes);
  auto* data = static_cast<int32_t*>(buffer_.get());
  for (uint64_t slot = 0; slot < kSlots; ++slot, data += 2 * count) {
    slots_.push_back({data, data + count});
  }
  thread_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  consumed_one_.notify_one();
  thread_.join();
}

void BatchLoader::run() {
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      // Batch `produced_` overwrites batch `produced_ - kSlots`, which must no longer be in use.
      consumed_one_.wait(lock, [this] { return stop_ || produced_ < consumed_ + kAhead; });
      if (stop_) return;
      const Slot slot = slots_[produced_ % kSlots];
      const uint64_t k = first_.batch + produced_ * stride_;
      lock.unlock();
      fill_(k, slot.tokens, slot.targets);
      lock.lock();
      ++produced_;
      produced_one_.notify_one();
    }
  } catch (...) {
    lock.lock();  // fill_ threw while the lock was released
    error_ = std::current_exception();
    produced_one_.notify_one();
  }
}

Batch BatchLoader::next() {
  std::unique_lock lock(mutex_);
  produced_one_.wait(lock, [this] { return produced_ > consumed_ || error_; });
  if (produced_ == consumed_) std::rethrow_exception(error_);
  const Slot slot = slots_[consumed_ % kSlots];
  const uint64_t k = first_.batch + consumed_++ * stride_;
  consumed_one_.notify_one();
  return {slot.tokens, slot.targets, rows_, context_, k};
}

SamplerState BatchLoader::state() const {
  const std::lock_guard lock(mutex_);
  return {first_.seed, first_.batch + consumed_ * stride_};
}

}  // namespace quern
