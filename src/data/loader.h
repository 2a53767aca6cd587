// Prepares batches ahead of use on a thread, in a ring of host buffers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace quern {

// Allocates the ring's buffers: ordinary memory, or pinned memory that a GPU copies from. Throws
// when out of memory.
using HostMemory = std::function<std::shared_ptr<void>(int64_t bytes)>;
std::shared_ptr<void> ordinary_host_memory(int64_t bytes);

struct Batch {
  const int32_t* tokens = nullptr;   // (rows, T)
  const int32_t* targets = nullptr;  // (rows, T)
  int64_t rows = 0;                  // B
  int64_t context = 0;               // T
  uint64_t index = 0;                // k, as in DrawWindows
  // Targets that count in all batches of its step; none: all count, or a step has one batch.
  std::optional<int64_t> counted = {};
};

// The sampling of the windows, the masking of their targets, and the share of a rank.
struct BatchOptions {
  Sampling sampling = Sampling::random;
  std::optional<int32_t> document_end = {};  // mask the targets after this token; empty: none
  int64_t vocabulary = 0;                    // every token must be below it; 0: not checked
  uint64_t stride = 1;                       // every stride-th batch: one rank's, of `stride` ranks
  uint64_t per_step = 1;                     // batches of a step, of all ranks
};

class BatchLoader {
 public:
  // Writes batch k: tokens and targets (B, T). Returns Batch::counted. Runs on the loader's thread;
  // next() rethrows its exceptions.
  using Fill = std::function<std::optional<int64_t>(uint64_t k, int32_t* tokens, int32_t* targets)>;

  BatchLoader(Fill fill, int64_t rows, int64_t context, SamplerState first,
              const HostMemory& memory = ordinary_host_memory, uint64_t stride = 1);
  // Batches first.batch, first.batch + options.stride, ... of windows of `source`.
  BatchLoader(TokenSource source, int64_t rows, int64_t context, SamplerState first,
              const HostMemory& memory = ordinary_host_memory, const BatchOptions& options = {});
  ~BatchLoader();  // stops the thread after the current batch
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Waits for the next batch. It stays valid until the second next() after this one, so that a copy
  // to the device may still run while the following batch is fetched.
  Batch next();

  // The next batch of next(). A loader constructed with this state continues exactly here.
  SamplerState state() const;

 private:
  struct Slot {
    int32_t* tokens;
    int32_t* targets;
    std::optional<int64_t> counted = {};
  };

  void run();  // the thread

  Fill fill_;
  int64_t rows_, context_;
  SamplerState first_;
  uint64_t stride_;
  std::shared_ptr<void> buffer_;  // all slots
  std::vector<Slot> slots_;

  mutable std::mutex mutex_;
  std::condition_variable produced_one_, consumed_one_;
  uint64_t produced_ = 0, consumed_ = 0;  // batches since first_
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last, since it uses the members above
};

}  // namespace quern
