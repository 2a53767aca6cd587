// The passes of Muon (K. Jordan et al., 2024) around its Newton-Schulz products, for matrices that
// lie anywhere in their buffers. The semantics and roundings are torch.optim.Muon's.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/optimizer.h"

namespace quern::kernels {

// A matrix, or the part of one that a rank has: the places of its first element, and its treatment.
struct MuonMatrix {
  int64_t weight = 0, grad = 0, momentum = 0, x = 0;  // elements of these buffers
  int64_t numel = 0;
  float lr_scale = 1.0f;  // factor on lr
  float adjust = 1.0f;    // factor on the orthogonal update
  float decay = 0.0f;     // weight decay
};

// A part of a matrix that is copied from one buffer to another.
struct MuonCopy {
  int64_t to = 0, from = 0;  // the places of its first element
  int64_t numel = 0;
};

// A table on the device.
template <class Row>
struct MuonTable {
  const Row* rows = nullptr;
  int64_t count = 0;
  int64_t most = 0;  // elements of the largest row
};

using MuonMatrices = MuonTable<MuonMatrix>;
using MuonCopies = MuonTable<MuonCopy>;

inline constexpr int64_t kMuonParts = 64;  // partial sums of a matrix's squares
inline constexpr int64_t kMuonMirrorMultiple = 128;

namespace cpu {
// g = grad clip; momentum += (1 - mu) (g - momentum); x = bf16(g + mu (momentum - g)) with
// nesterov, else bf16(momentum). Does nothing at all when state->finite is 0.
void muon_momentum(bfloat16* x, float* momentum, const float* grad, const MuonMatrices& matrices,
                   float mu, bool nesterov, const StepState* state, Stream stream);

// squares (count, kMuonParts): sums of x^2. Their order depends on numel alone where x and the
// places in it are multiples of 16 bytes.
void muon_squares(float* squares, const bfloat16* x, const MuonMatrices& matrices, Stream stream);

// x /= max(||x||, eps) for each matrix, the norm rounded to BF16.
void muon_normalize(bfloat16* x, const float* squares, const MuonMatrices& matrices, float eps,
                    Stream stream);

// lr = state->lr lr_scale; weight = weight (1 - lr decay) - lr adjust x. Does nothing at all when
// state->finite is 0.
void muon_update(const WeightArrays& weights, const bfloat16* x, const MuonMatrices& matrices,
                 const StepState* state, Stream stream);

void muon_copy(bfloat16* to, const bfloat16* from, const MuonCopies& copies, Stream stream);

// The upper right quarter of `count` symmetric (n, n) matrices, `stride` elements apart, from the
// lower left one: x[i, j] = x[j, i] for i < n / 2 <= j. n is a multiple of kMuonMirrorMultiple.
void muon_mirror(bfloat16* x, int64_t n, int64_t count, int64_t stride, Stream stream);
}  // namespace cpu

namespace cuda {
void muon_momentum(bfloat16* x, float* momentum, const float* grad, const MuonMatrices& matrices,
                   float mu, bool nesterov, const StepState* state, Stream stream);
void muon_squares(float* squares, const bfloat16* x, const MuonMatrices& matrices, Stream stream);
void muon_normalize(bfloat16* x, const float* squares, const MuonMatrices& matrices, float eps,
                    Stream stream);
void muon_update(const WeightArrays& weights, const bfloat16* x, const MuonMatrices& matrices,
                 const StepState* state, Stream stream);
void muon_copy(bfloat16* to, const bfloat16* from, const MuonCopies& copies, Stream stream);
void muon_mirror(bfloat16* x, int64_t n, int64_t count, int64_t stride, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
