// One thread reads blocks, several encode them, and the caller gets them in reading order.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/prepare/block_encoder.h"

namespace quern {

class EncodePipeline {
 public:
  using Read = std::function<bool(SourceBlock&)>;  // false at the end
  using MakeEncoder = std::function<std::unique_ptr<BlockEncoder>()>;

  // Both functions run on the pipeline's threads. At most `most_bytes` of text are in flight, or a
  // single larger block. The destructor stops the threads after their current blocks. Throws when
  // the system has no room for so many threads.
  EncodePipeline(Read read, MakeEncoder make_encoder, int threads, size_t most_bytes);
  ~EncodePipeline() {
    for (std::jthread& thread : threads_) thread.request_stop();
  }

  // The next block; empty after the last. Rethrows an exception of reading or encoding at that
  // block's turn.
  std::optional<EncodedBlock> next();

 private:
  struct Job {
    SourceBlock source;
    size_t bytes = 0;
    std::optional<EncodedBlock> encoded;
    std::exception_ptr error;
    bool done = false;
  };

  void read_blocks(const std::stop_token& stop);
  void encode_blocks(const std::stop_token& stop);
  bool push(std::shared_ptr<Job> job, const std::stop_token& stop);

  Read read_;
  MakeEncoder make_encoder_;
  size_t most_bytes_;

  std::mutex mutex_;
  std::condition_variable_any room_, work_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Job>> in_order_;  // read, not yet returned to the caller
  std::deque<std::shared_ptr<Job>> waiting_;   // read, not yet taken by an encoder
  size_t bytes_ = 0;                           // of in_order_
  bool read_all_ = false;
  std::vector<std::jthread> threads_;  // last, since they use the members above
};

}  // namespace quern
