// The model: token embedding, blocks, final norm, LM head. Its Architecture determines their kinds
// and names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "autograd/host_stash.h"
#include "autograd/ops/lm_head.h"
#include "model/architecture.h"
#include "nn/embedding.h"

namespace quern {

class TransformerLM : public Module {
 public:
  // Throws when the configuration cannot be built. Takes no memory and needs no Context: build a
  // ParameterArena before the first call.
  TransformerLM(const ModelConfig& config, const ModelOptions& options,
                InitScheme init = InitScheme::normal);
  TransformerLM(const ModelConfig& config, const ModelOptions& options, InitScheme init,
                const Architecture& architecture);

  // `scale` times the mean cross-entropy (nats per token) of targets (B, T) given tokens (B, T),
  // both i32 -> (), FP32. With gradients enabled it is the training loss, with dropout and plus the
  // z-loss. Then zero the gradients first, and use the loss only for backward(loss) or in a sum
  // with other losses: fused kernels already add the head's gradient here (autograd/ops/lm_head.h).
  Variable loss(const Tensor& tokens, const Tensor& targets, double scale = 1.0) const {
    return loss_terms(tokens, targets, scale).loss;
  }
  // inverse_count: one FP32 element; replaces 1 / the number of targets that count here, so that
  // the sum of several batches' losses is the mean over all their targets. Undefined: the batch's
  // own.
  LmHeadResult loss_terms(const Tensor& tokens, const Tensor& targets, double scale = 1.0,
                          const Tensor& inverse_count = {}) const;

  // Seeds the masks of dropout. Training losses take the draws number, number + stride, ...
  // Required before the first training loss of a model with dropout.
  void start_dropout(uint64_t seed, uint64_t number = 0, uint64_t stride = 1);

  // (B, T) -> (B, T, V) in the activations' type.
  Variable logits(const Tensor& tokens) const;

  // Generation. decode() appends `tokens` (B, T) to the cache and returns the logits (B, V) of the
  // next token. Throws when the cache is full.
  KvCache make_cache(int64_t batch, int64_t capacity) const;
  Tensor decode(const Tensor& tokens, KvCache& cache) const;

  // The weights for the fused decoder; empty when decoding is composed of ops.
  std::optional<DecodeWeights> decode_weights() const;

  // FLOPs per token of the forward beyond 2 for each parameter, over `context` tokens.
  double mixing_flops(int64_t context) const;

  void declare(ParameterList& list) override;
  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }

 private:
  Residual embed(const Tensor& tokens, int64_t begin) const;   // (B, T) -> x (B, T, C)
  Variable project(const Variable& h) const;                   // (..., C) -> logits (..., V)
  Variable hidden(const Tensor& tokens, bool training) const;  // (B, T) -> (B, T, C), normed
  Residual run_blocks(const Residual& in, const SharedInputs& shared, size_t begin,
                      size_t end) const;
  SharedInputs shared_inputs() const { return {positions_->rope()}; }
  const Parameter& head() const { return head_ ? *head_ : embedding_.weight; }  // (V, C)

  ModelConfig config_;
  ModelOptions options_;
  Architecture architecture_;
  Embedding embedding_;
  std::unique_ptr<Positions> positions_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::shared_ptr<HostStash> stash_;  // null: activations stay on the device
  std::unique_ptr<Norm> norm_;
  std::optional<Parameter> head_;  // absent when tied to the embedding
  Tensor draws_;                   // of dropout
};

}  // namespace quern
