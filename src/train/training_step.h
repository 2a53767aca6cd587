// The device work of a training step, one micro-batch at a time: gradients, and after the last
// micro-batch the optimizer. On a GPU it is captured as a CUDA graph and replayed.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "config/config.h"
#include "dist/gradient_sum.h"
#include "dist/sharded_weights.h"
#include "optim/optimizer.h"
#include "run/model_instance.h"
#include "tensor/graph.h"

namespace quern {

// Whether steps of this configuration are captured: on a GPU, unless `graph` is off, and with fused
// kernels (the naive optimizer reads the gradient norm on the host).
bool captures_steps(const ComputeSection& compute);

// Random tokens instead of data.
struct RandomBatch {
  Tensor tokens, targets;  // (B, T) i32
};

// `rows` sequences of the model's context and vocabulary, from the Context's generator.
RandomBatch random_batch(const ModelConfig& model, int64_t rows);

// The computation of every training mode: adds the gradients of micro-batch loss / count to the
// arena's. Returns that loss, already run backwards. With inverse_count
// (TransformerLM::loss_terms) its sum is a part of a mean over the targets of all micro-batches.
LmHeadResult forward_backward(const ModelInstance& instance, const Tensor& tokens,
                              const Tensor& targets, int64_t count,
                              const Tensor& inverse_count = {});

// Between several ranks: the naive twin with naive kernels.
BucketExchange exchange_of(const ComputeSection& compute);

// The strategy of several ranks; never `automatic`.
Parallel decided_parallel(const Config& config);

// This rank's part of the arena, and its weights, under parallel = zero1, zero2 or fsdp with
// several ranks; none and null otherwise.
ArenaLayoutOf layout_for(const Config& config, const Communicator* ranks);
std::unique_ptr<ShardedWeights> make_shards(ParameterArena& arena, Communicator* ranks,
                                            const Config& config);

class TrainingStep {
 public:
  // instance, optimizer, ranks and shards outlive this. ranks: null for one rank. shards: of an
  // arena that ranks share out; null: each has everything.
  TrainingStep(ModelInstance& instance, Optimizer& optimizer, bool capture,
               Communicator* ranks = nullptr, BucketExchange exchange = BucketExchange::overlapped,
               ShardedWeights* shards = nullptr);
  ~TrainingStep();

  // tokens and targets (B, T) i32. The first run of a kind (shape, place in the step) launches its
  // kernels one by one; the next captures them and every later one replays the capture, with the
  // same bits. The optimizer's learning rate is set beforehand. counted: number of targets that
  // count in the step's micro-batches on all ranks; none: equally many in each.
  void run(const Tensor& tokens, const Tensor& targets, MicroBatch part,
           std::optional<int64_t> counted = {});

  // For work between steps (validation, samples): allocations during the scope's lifetime come from
  // the memory of the steps. Release them before the next run().
  PoolScope idle_memory() const;

  // Means over the micro-batches of the step so far, of all ranks; with `counted` over its targets
  // as far as they have come. The same tensors at every step: the cross-entropy and the z-loss
  // (undefined when the model has none), one FP32 element each on the device.
  const Tensor& loss() const { return loss_; }
  const Tensor& z_loss() const { return z_loss_; }

  // From the next step on, ranks_asking() is above 0 on every rank: all stop after the same step.
  void ask_to_stop();
  const Tensor& ranks_asking() const { return asking_; }  // one FP32 element

 private:
  struct Kind;
  struct Recording;

  void launch(const Tensor& tokens, const Tensor& targets, const Kind& kind);
  Recording& recording_for(const Kind& kind);

  ModelInstance& instance_;
  Optimizer& optimizer_;
  ShardedWeights* shards_;
  bool capture_, asked_ = false;
  int64_t ranks_;
  std::unique_ptr<GradientSum> gradients_;
  Tensor values_, sums_;  // cross-entropy, z-loss, asking to stop: a micro-batch's, a step's
  Tensor loss_, z_loss_, asking_;     // elements of sums_
  Tensor inverse_count_;              // (), 1 / counted; undefined until a step has it
  std::shared_ptr<MemoryPool> pool_;  // of all recordings: they run one after another
  std::list<std::unique_ptr<Recording>> recordings_;  // latest used first
};

}  // namespace quern
