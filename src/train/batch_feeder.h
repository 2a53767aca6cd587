// Training batches on the Context's device: the loader's host buffers, copied ahead of their use.
#pragma once

#include <array>
#include <cstdint>

#include "data/loader.h"
#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace quern {

struct DeviceBatch {
  Tensor tokens, targets;  // (B, T) i32
  uint64_t index = 0;      // k, as in DrawWindows
};

// Owns the loader. Two device buffers and, on a GPU, a stream of its own: while a step computes
// with one, the next batch is copied to the other.
class BatchFeeder {
 public:
  BatchFeeder(const TokenSource& source, int64_t batch, int64_t context, SamplerState first,
              const BatchOptions& options = {});
  ~BatchFeeder();
  BatchFeeder(const BatchFeeder&) = delete;
  BatchFeeder& operator=(const BatchFeeder&) = delete;

  // The batch is ready for work on the Context's stream, and may be used by what is put there
  // before the next call.
  DeviceBatch next();

 private:
  void start_copy(size_t turn);

  BatchLoader loader_;
  std::array<DeviceBatch, 2> buffers_;
  cuda::OwnedStream stream_;           // of the copies, on a GPU
  std::array<cuda::Event, 2> copied_;  // the batch is there
  cuda::Event free_;                   // the work on a buffer is done
  size_t turn_ = 0;                    // the buffer that next() will give
  bool started_ = false;
};

}  // namespace quern
