// Training batches on the Context's device: the loader's host buffers, copied ahead of their use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "data/loader.h"
#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace quern {

struct DeviceBatch {
  Tensor tokens, targets;               // (B, T) i32
  std::optional<int64_t> counted = {};  // as in Batch
};

// Owns the loader. Has two device buffers and, on a GPU, its own stream: while a step computes with
// one buffer, the next batch is copied to the other.
class BatchFeeder {
 public:
  BatchFeeder(const TokenSource& source, int64_t batch, int64_t context, SamplerState first,
              const BatchOptions& options = {});
  ~BatchFeeder();
  BatchFeeder(const BatchFeeder&) = delete;
  BatchFeeder& operator=(const BatchFeeder&) = delete;

  // The batch is ready for work on the Context's stream. Only work put there before the next call
  // may use it.
  DeviceBatch next();

 private:
  void start_copy(size_t turn);

  BatchLoader loader_;
  std::array<DeviceBatch, 2> buffers_;
  cuda::OwnedStream stream_;           // of the copies, on a GPU
  std::array<cuda::Event, 2> copied_;  // the batch is there
  cuda::Event free_;                   // the work on a buffer is done
  size_t turn_ = 0;                    // the buffer of the following next()
  bool started_ = false;
};

}  // namespace quern
