// A ring of rows in shared memory, for kernels that walk down the rows of three arrays (rows, C) of
// whole 16-byte vectors: x and dsum of TX, dy of TY. Copies (cp.async) are under way while earlier
// rows are computed with, and take no registers. A thread waits for its own copies alone, since no
// other thread reads them. Elements beyond the block's rows or C are zero.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "kernels/cuda/primitives/row.cuh"

namespace quern::kernels::cuda {

// kVectors vectors of each array and row. kBytes of shared memory a thread.
template <class TX, class TY, int kVectors, int kStages>
class RowRing {
  static constexpr int kVec = kVecSize<TX>;

 public:
  using X = Held<TX, kVec>;
  using Y = Held<TY, kVec>;
  static constexpr int kBytes = kStages * kVectors * (2 * sizeof(X) + sizeof(Y));  // a thread

  // The block's rows are those before `end`, of which this thread takes every `step`-th.
  __device__ __forceinline__ RowRing(char* memory, const TX* x, const TY* dy, const TX* dsum,
                                     int end, int step, int64_t C)
      : threads_(static_cast<int>(blockDim.x * blockDim.y)),
        slots_x_(reinterpret_cast<X*>(memory) + threadIdx.y * blockDim.x + threadIdx.x),
        slots_dsum_(slots_x_ + kStages * kVectors * threads_),
        slots_dy_(reinterpret_cast<Y*>(memory + 2 * sizeof(X) * kStages * kVectors * threads_) +
                  threadIdx.y * blockDim.x + threadIdx.x),
        x_(x),
        dsum_(dsum),
        dy_(dy),
        end_(end),
        step_(step),
        C_(C) {}

  // Starts to copy the rows of the first turns.
  __device__ __forceinline__ void fill(int row) {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) copy_row(s, row + s * step_);
  }
  // Waits for `row`, the next one, and starts to copy the one kStages - 1 turns later.
  __device__ __forceinline__ void advance(int row) {
    __pipeline_wait_prior(kStages - 2);
    const int freed = stage_;
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    copy_row(freed, row + (kStages - 1) * step_);
  }
  __device__ __forceinline__ X x(int v) const {
    return slots_x_[slot(stage_, v)];
  }
  __device__ __forceinline__ Y dy(int v) const {
    return slots_dy_[slot(stage_, v)];
  }
  __device__ __forceinline__ X dsum(int v) const {
    return dsum_ != nullptr ? slots_dsum_[slot(stage_, v)] : X{};
  }

 private:
  __device__ __forceinline__ int slot(int stage, int v) const {
    return (stage * kVectors + v) * threads_;
  }
  __device__ __forceinline__ void copy_row(int stage, int row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v), to = slot(stage, v);
      const bool inside = row < end_ && c < C_;
      const int64_t from = inside ? row * C_ + c : 0;
      copy(slots_x_ + to, x_ + from, inside);
      copy(slots_dy_ + to, dy_ + from, inside);
      if (dsum_ != nullptr) copy(slots_dsum_ + to, dsum_ + from, inside);
    }
    __pipeline_commit();
  }
  template <class V, class T>
  static __device__ __forceinline__ void copy(V* to, const T* from, bool inside) {
    __pipeline_memcpy_async(to, from, sizeof(V), inside ? 0 : sizeof(V));
  }

  int threads_;
  X *slots_x_, *slots_dsum_;
  Y* slots_dy_;
  const TX *x_, *dsum_;
  const TY* dy_;
  int end_, step_;
  int64_t C_;
  int stage_ = kStages - 1;  // of the row at hand
};

}  // namespace quern::kernels::cuda
