#include "data/loader.h"

#include <utility>

#include "base/error.h"

namespace quern {

namespace {

// The last two batches returned stay valid (see next()); the other slots are filled ahead.
constexpr uint64_t kHeld = 2;
constexpr uint64_t kAhead = 2;
constexpr uint64_t kSlots = kHeld + kAhead;

// Counts the targets of whole steps, whose batches are also those of other ranks. A step's batches
// are drawn once more for it, since a rank's first one needs the count of all.
class StepCount {
 public:
  // first: the first draw of the first step.
  StepCount(TokenSource source, DrawWindows draw, uint64_t first, int64_t rows, int64_t context,
            uint64_t per_step)
      : source_(std::move(source)),
        draw_(std::move(draw)),
        first_(first),
        context_(context),
        per_step_(per_step),
        starts_(static_cast<size_t>(rows)),
        tokens_(static_cast<size_t>(rows * context)),
        targets_(tokens_.size()) {}

  // The targets counted in the step that has batch k of all ranks.
  int64_t of_step(uint64_t k, int32_t end) {
    const uint64_t step = k / per_step_;
    if (step_ == step) return count_;
    step_ = step;
    count_ = 0;
    for (uint64_t i = step * per_step_; i < (step + 1) * per_step_; ++i) {
      draw_(first_ + i * starts_.size(), starts_);
      copy_windows(source_, starts_, context_, tokens_.data(), targets_.data());
      count_ += mask_document_starts(tokens_, targets_, end);
    }
    return count_;
  }

 private:
  TokenSource source_;
  DrawWindows draw_;
  uint64_t first_;
  int64_t context_;
  uint64_t per_step_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> tokens_, targets_;
  std::optional<uint64_t> step_;
  int64_t count_ = 0;
};

BatchLoader::Fill drawn_windows(TokenSource source, int64_t rows, int64_t context,
                                SamplerState first, const BatchOptions& options) {
  const DrawWindows draw = make_sampler(options.sampling, source.size(), context, first.seed);
  const auto count = static_cast<size_t>(rows * context);
  std::optional<StepCount> step_count;
  if (options.document_end && options.per_step > 1) {
    step_count.emplace(source, draw, first.draw, rows, context, options.per_step);
  }
  return [=, end = options.document_end, vocabulary = options.vocabulary,
          starts = std::vector<int64_t>(static_cast<size_t>(rows))](
             uint64_t k, int32_t* tokens, int32_t* targets) mutable -> std::optional<int64_t> {
    const uint64_t of_all = options.rank + k * options.ranks;
    draw(first.draw + of_all * starts.size(), starts);
    copy_windows(source, starts, context, tokens, targets);
    if (vocabulary > 0) check_windows(source, starts, context, tokens, targets, vocabulary);
    if (end) mask_document_starts({tokens, count}, {targets, count}, *end);
    if (!step_count) return std::nullopt;
    return step_count->of_step(of_all, *end);
  };
}

}  // namespace

BatchLoader::BatchLoader(TokenSource source, int64_t rows, int64_t context, SamplerState first,
                         const HostMemory& memory, const BatchOptions& options)
    : BatchLoader(drawn_windows(std::move(source), rows, context, first, options), rows, context,
                  memory) {}

BatchLoader::BatchLoader(Fill fill, int64_t rows, int64_t context, const HostMemory& memory)
    : fill_(std::move(fill)) {
  QUERN_CHECK(rows > 0 && context > 0, "loader: a batch of (", rows, ", ", context,
              ") tokens, expected at least (1, 1)");
  const int64_t count = rows * context;
  const auto bytes = static_cast<int64_t>(2 * kSlots * sizeof(int32_t)) * count;
  buffer_ = memory(bytes);
  auto* data = static_cast<int32_t*>(buffer_.get());
  for (uint64_t slot = 0; slot < kSlots; ++slot, data += 2 * count) {
    slots_.push_back({data, data + count});
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void BatchLoader::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      // Batch `produced_` overwrites batch `produced_ - kSlots`, which must no longer be in use.
      consumed_one_.wait(lock, stop, [this] { return produced_ < consumed_ + kAhead; });
      if (stop.stop_requested()) return;
      Slot& slot = slots_[produced_ % kSlots];
      lock.unlock();
      slot.counted = fill_(produced_, slot.tokens, slot.targets);
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
  const Slot& slot = slots_[consumed_ % kSlots];
  ++consumed_;
  consumed_one_.notify_one();
  return {slot.tokens, slot.targets, slot.counted};
}

}  // namespace quern
