// Muon (K. Jordan et al., 2024, kellerjordan.github.io/posts/muon): momentum, made orthogonal per
// matrix before it changes the weights. Follows torch.optim.Muon of PyTorch 2.9.
#pragma once

#include <string>
#include <vector>

#include "kernels/muon.h"
#include "optim/adamw.h"
#include "optim/optimizer_kind.h"

namespace quern {

// Newton and Schulz's iteration of degree five: with G = X X^T, X becomes a X + (b G + c G G) X.
struct NewtonSchulz {
  double a = 3.4445, b = -4.7750, c = 2.0315;
  int iterations = 5;
};

struct MuonOptions {
  AdamWOptions adamw;  // for embeddings, head and vectors; decay and clip apply to all parameters
  double momentum = 0.95;
  bool nesterov = true;
  double lr_scale = 1.0;  // factor on the hidden matrices' learning rate
  MuonAdjust adjust = MuonAdjust::match_rms_adamw;
  double eps = 1e-7;  // smallest norm that a matrix is divided by
  NewtonSchulz iteration = {};
  int64_t most_elements = int64_t{1} << 29;  // orthogonalised at once: 4 GiB of workspace
};

// Muon for hidden matrices, each part of a fused weight separately; AdamW for all other parameters.
// Matrices of one shape form a group: each of its products is one batched call, a symmetric
// one of 512 and more columns two (muon.cpp).
class Muon : public Optimizer {
 public:
  Muon(ParameterArena& arena, const MuonOptions& options);

  const char* name() const override { return "muon"; }
  std::vector<OptimizerBuffer> buffers() const override;

 private:
  struct Group {
    int64_t rows = 0, cols = 0;
    int64_t first = 0, stride = 0;  // elements of momentum_
    std::vector<kernels::MuonMatrix> matrices;
    std::vector<std::string> names;
    Tensor table;  // u8: the matrices on the device

    int64_t count() const { return static_cast<int64_t>(matrices.size()); }
  };

  void add_matrix(const ParameterGroup& treatment, const NamedSlice& slice);
  void fused_update() override;
  void update_matrices(const Group& group, int64_t begin, int64_t end);
  void naive_update(double clip, const kernels::StepState& now) override;

  MuonOptions options_;
  AdamWMoments moments_;
  std::vector<Group> groups_;
  Tensor momentum_;  // f32, group after group
};

// Matrices of one shape that lie `stride` elements apart.
struct MatrixBatch {
  int64_t rows = 0, cols = 0, count = 0, stride = 0;
};

// Iterates on matrices of norm 1 or less in x (bf16, one dimension), and overwrites x. Returns a
// tensor of the same layout.
Tensor orthogonalize(const Tensor& x, const MatrixBatch& batch, const NewtonSchulz& options);

// The twin composed of small ops: one matrix (rows, cols) of any floating dtype.
Tensor naive_orthogonalize(const Tensor& x, const NewtonSchulz& options);

}  // namespace quern
