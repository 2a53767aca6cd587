// Training batches on the Context's device: the loader's host buffers, copied ahead of their use.
#pragma once

#include <array>
#include <cstdint>

#include "data/loader.h"
#include "tensor/tensor.h"

namespace quern {

struct DeviceBatch {
  Tensor tokens, targets;  // (B, T) i32
  uint64_t index = 0;      // k, as in RandomSampler::draw
};

// Owns the loader. Two device buffers, so that a batch may still be in use while the next one is
// copied.
class BatchFeeder {
 public:
  BatchFeeder(const TokenSource& source, int64_t batch, int64_t context, SamplerState first);
  ~BatchFeeder();
  BatchFeeder(const BatchFeeder&) = delete;
  BatchFeeder& operator=(const BatchFeeder&) = delete;

  DeviceBatch next();
  SamplerState state() const { return loader_.state(); }  // of the batch that next() will give

 private:
  BatchLoader loader_;
  std::array<DeviceBatch, 2> buffers_;
  std::array<void*, 2> copied_{};  // CUDA events: the loader's buffer may be filled anew
  size_t turn_ = 0;
};

}  // namespace quern
