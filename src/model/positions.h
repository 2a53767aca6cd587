// Positions of tokens: none, rotary or learned.
#pragma once

#include "autograd/ops/rope.h"
#include "nn/embedding.h"

namespace quern {

// The base class adds no positions: only the causal mask then orders the tokens.
class Positions : public Module {
 public:
  // The embedding of tokens (B, T) at positions begin ... -> (B, T, C) in `out`.
  virtual Variable embed(const Embedding& embedding, const Tensor& tokens, int64_t begin,
                         DType out) const;
  // The table for attention's rotation of q and k, or null.
  virtual const RopeTable* rope() const { return nullptr; }
  void declare(ParameterList&) override {}
};

// RoPE: cosines and sines in FP32, shared by all blocks.
class RotaryPositions : public Positions {
 public:
  // Positions 0 .. positions-1 of heads of width head_dim.
  RotaryPositions(int64_t positions, int64_t head_dim, double theta,
                  const kernels::RopeScaling& scaling)
      : positions_(positions), head_dim_(head_dim), theta_(theta), scaling_(scaling) {}

  const RopeTable* rope() const override { return &table_; }
  void declare(ParameterList& list) override;

 private:
  int64_t positions_, head_dim_;
  double theta_;
  kernels::RopeScaling scaling_;
  RopeTable table_;  // cos, sin: (positions, D/2); made with the arena
};

// Learned (GPT-2): a row for each position, added to the token's.
class LearnedPositions : public Positions {
 public:
  LearnedPositions(int64_t positions, int64_t width, Init init) : rows_(positions, width, init) {}

  Variable embed(const Embedding& embedding, const Tensor& tokens, int64_t begin,
                 DType out) const override;
  void declare(ParameterList& list) override { rows_.declare(list); }

 private:
  Embedding rows_;  // (positions, C)
};

}  // namespace quern
