// Muon (K. Jordan et al., 2024, kellerjordan.github.io/posts/muon): momentum, made orthogonal per
// matrix before it changes the weights. Follows torch.optim.Muon of PyTorch 2.9.
#pragma once

#include <functional>
#include <span>
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
  // Elements that a round has on each rank, as a mean: 4 GiB of workspace, with ranks 6.
  int64_t most_elements = int64_t{1} << 29;
};

// Whether Muon updates the parameter, if it is trainable; else AdamW does.
bool has_momentum(const ParameterEntry& entry);

// All-to-all between ranks that share out the arena: each sends `each` floats to every rank, itself
// included. received + p each = sent + rank() each of rank p. `what` names the data in messages.
using MuonExchange =
    std::function<void(float* received, const float* sent, int64_t each, const char* what)>;

// Muon for hidden matrices, each part of a fused weight separately; AdamW for all other parameters.
// It takes the matrices in rounds that bound its workspace, small models in one. Matrices of one
// shape form a group. Each product of a group is one batched call; a symmetric one of 512 or more
// columns takes two (muon.cpp).
//
// Ranks that share out the arena share out the matrices of a group too. A rank computes the
// momentum of its slices, receives the other parts of its matrices, orthogonalizes these and
// returns the parts. With fewer matrices of a shape than ranks, some ranks have none. The result
// has the bits of one rank.
class Muon : public Optimizer {
 public:
  // exchange: needed where ranks share out the arena.
  Muon(ParameterArena& arena, const MuonOptions& options, MuonExchange exchange = {});

  const char* name() const override { return "muon"; }
  std::vector<OptimizerBuffer> buffers() const override;

 private:
  struct Matrix {
    NamedSlice slice;  // of the arena
    float lr_scale = 1.0f, adjust = 1.0f, decay = 0.0f;
  };

  // A kernels::MuonTable and its memory.
  template <class Row>
  struct Table : kernels::MuonTable<Row> {
    Table() = default;
    explicit Table(const std::vector<Row>& rows);

    Tensor memory;
  };
  using Matrices = Table<kernels::MuonMatrix>;
  using Copies = Table<kernels::MuonCopy>;

  // Matrices of one shape that are orthogonalised together.
  struct Group {
    int64_t rows = 0, cols = 0, stride = 0;  // stride: elements from one to the next in x
    int64_t like = 0;                        // matrices of this shape in the model; see MatrixBatch
    Matrices matrices;                       // those that this rank makes orthogonal
    Copies unpacks, packs;                   // if shared out: from and to the exchange buffers
  };

  // Neighbours in the arena, whose parts the ranks exchange together.
  struct Round {
    std::vector<Group> groups;
    // If shared out: this rank's parts of all matrices, in the arena and in the send buffer.
    Matrices parts;
    int64_t each = 0;  // elements that it sends to another
  };

  Round round_of(std::span<const Matrix> matrices) const;
  Group group_of(const std::vector<Matrix>& matrices) const;
  void share_out(Round& round, const std::vector<std::vector<Matrix>>& matrices) const;
  std::span<const Matrix> owned(const std::vector<Matrix>& matrices, int64_t rank) const;
  kernels::MuonMatrix part_of(const Matrix& matrix, int64_t begin, int64_t end, int64_t x) const;
  int64_t ranks() const { return std::ssize(arena().layout().shares); }  // 0: not shared out

  void fused_update() override;
  void update(const Group& group) const;
  void update(const Round& round) const;
  void read_momentum(const Tensor& x, const Matrices& matrices) const;
  void change_weights(const Tensor& x, const Matrices& matrices) const;
  Tensor orthogonal(const Group& group, const Tensor& x) const;
  void naive_update(const Tensor& values, double clip, const kernels::StepState& now) override;
  void complete(const Tensor& direction, int64_t begin) const;

  MuonOptions options_;
  MuonExchange exchange_;
  AdamWMoments moments_;
  StateLayout layout_;            // of the momentum
  std::vector<Matrix> matrices_;  // in arena order
  std::vector<Round> rounds_;
  Tensor momentum_;  // f32
};

// Matrices of one shape that lie `stride` elements apart.
struct MatrixBatch {
  int64_t rows = 0, cols = 0, count = 0, stride = 0;
  int64_t like = 0;  // gives the bits of a batch of this size; 0: of `count`
};

// Iterates on matrices of norm 1 or less in x (bf16, one dimension), and overwrites x. Returns a
// tensor of the same layout.
Tensor orthogonalize(const Tensor& x, const MatrixBatch& batch, const NewtonSchulz& options);

// The twin composed of small ops: one matrix (rows, cols) of any floating dtype.
Tensor naive_orthogonalize(const Tensor& x, const NewtonSchulz& options);

}  // namespace quern
