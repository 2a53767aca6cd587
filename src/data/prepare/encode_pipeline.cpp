#include "data/prepare/encode_pipeline.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace quern {

EncodePipeline::EncodePipeline(Read read, MakeEncoder make_encoder, int threads, size_t most_bytes)
    : read_(std::move(read)), make_encoder_(std::move(make_encoder)), most_bytes_(most_bytes) {
  try {
    threads_.emplace_back([this](const std::stop_token& stop) { read_blocks(stop); });
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { encode_blocks(stop); });
    }
  } catch (const std::system_error& error) {
    fail(cat("prepare: thread ", threads_.size(), " of ", threads,
             " cannot be started: ", error.what(), "; choose fewer with --threads"));
  }
}

bool EncodePipeline::push(std::shared_ptr<Job> job, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, stop, [&] { return in_order_.empty() || bytes_ + job->bytes <= most_bytes_; });
  if (stop.stop_requested()) return false;
  bytes_ += job->bytes;
  in_order_.push_back(job);
  if (job->done) {
    done_.notify_one();
  } else {
    waiting_.push_back(std::move(job));
    work_.notify_one();
  }
  return true;
}

void EncodePipeline::read_blocks(const std::stop_token& stop) {
  bool more = true;
  while (more) {
    auto job = std::make_shared<Job>();
    try {
      more = read_(job->source);
    } catch (...) {
      job->error = std::current_exception();
      job->done = true;
    }
    constexpr size_t kOverhead = 4096;  // an empty block also uses memory
    job->bytes = job->source.block.text.size() + kOverhead;
    const bool failed = job->done;
    if (more && !push(std::move(job), stop)) return;
    if (failed) break;
  }
  const std::lock_guard lock(mutex_);
  read_all_ = true;
  done_.notify_one();
  work_.notify_all();
}

void EncodePipeline::encode_blocks(const std::stop_token& stop) {
  std::unique_ptr<BlockEncoder> encoder;
  for (;;) {
    std::unique_lock lock(mutex_);
    work_.wait(lock, stop, [&] { return read_all_ || !waiting_.empty(); });
    if (stop.stop_requested() || waiting_.empty()) return;
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      if (!encoder) encoder = make_encoder_();
      job->encoded = encoder->encode(std::move(job->source));
    } catch (...) {
      job->error = std::current_exception();
    }
    lock.lock();
    job->done = true;
    if (!in_order_.empty() && in_order_.front() == job) done_.notify_one();
  }
}

std::optional<EncodedBlock> EncodePipeline::next() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return in_order_.empty() ? read_all_ : in_order_.front()->done; });
  if (in_order_.empty()) return std::nullopt;
  const std::shared_ptr<Job> job = std::move(in_order_.front());
  in_order_.pop_front();
  bytes_ -= job->bytes;
  room_.notify_one();
  lock.unlock();
  if (job->error) std::rethrow_exception(job->error);
  return std::move(job->encoded);
}

}  // namespace quern
