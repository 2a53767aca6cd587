// Prepares batches ahead of use on a thread, in a ring of host buffers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace quern {

// Allocates the ring's buffers: ordinary memory, or pinned memory that a GPU copies from. Throws
// when out of memory.
using HostMemory = std::function<std::shared_ptr<void>(int64_t bytes)>;

struct Batch {
  const int32_t* tokens = nullptr;   // (B, T)
  const int32_t* targets = nullptr;  // (B, T)
  // Targets that count in all batches of its step; none: all count, or a step has one batch.
  std::optional<int64_t> counted = {};
};

// The sampling of the windows, the masking of their targets, and the share of a rank: every
// ranks-th batch, from the rank-th on.
struct BatchOptions {
  Sampling sampling = Sampling::random;
  std::optional<int32_t> document_end = {};  // mask the targets after this token; empty: none
  int64_t vocabulary = 0;                    // every token must be below it; 0: not checked
  uint64_t rank = 0, ranks = 1;
  uint64_t per_step = 1;  // batches of a step, of all ranks; the first batch begins a step
};

class BatchLoader {
 public:
  // Writes batch k since the loader's first one: tokens and targets (B, T). Returns Batch::counted.
  // Runs on the loader's thread; next() rethrows its exceptions.
  using Fill = std::function<std::optional<int64_t>(uint64_t k, int32_t* tokens, int32_t* targets)>;

  BatchLoader(Fill fill, int64_t rows, int64_t context, const HostMemory& memory);
  // The rank's batches of windows of `source`; the first draw of all ranks is first.draw.
  BatchLoader(TokenSource source, int64_t rows, int64_t context, SamplerState first,
              const HostMemory& memory, const BatchOptions& options = {});

  // Waits for the next batch. It stays valid until the second next() after this one, so that a copy
  // to the device may still run while the following batch is fetched.
  Batch next();

 private:
  struct Slot {
    int32_t* tokens;
    int32_t* targets;
    std::optional<int64_t> counted = {};
  };

  void run(const std::stop_token& stop);  // the thread

  Fill fill_;
  std::shared_ptr<void> buffer_;  // all slots
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable produced_one_;
  std::condition_variable_any consumed_one_;
  uint64_t produced_ = 0, consumed_ = 0;  // batches
  std::exception_ptr error_;
  std::jthread thread_;  // last, since it uses the members above; stops after the current batch
};

}  // namespace quern
