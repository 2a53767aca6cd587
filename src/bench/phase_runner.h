// A model with random weights, and one phase of training it on random tokens.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "base/enum_names.h"
#include "bench/harness.h"
#include "config/config.h"
#include "run/make_optimizer.h"
#include "run/model_instance.h"
#include "tensor/graph.h"
#include "train/training_step.h"

namespace quern {

// fwd: forward and loss without a tape. fwdbwd: forward, loss, backward. step: also clipping and
// the optimizer.
enum class Phase { fwd, fwdbwd, step };

template <>
inline constexpr std::array kNamesOf<Phase>{"fwd", "fwdbwd", "step"};

// The number of parts of a phase, each of which ends in a mark: forward, backward, optimizer.
size_t part_count(Phase phase);

// For commands without data. Throws UsageError when the vocabulary size is 0.
void check_vocabulary(const Config& config);

inline constexpr int64_t kCaptureWarmup = 2;  // a step runs once before it is captured

class PhaseRunner {
 public:
  // Makes four batches, which the calls below use in turn. group: all ranks, for train() alone, and
  // outlives this; null: one rank.
  PhaseRunner(const Config& config, Phase phase, Communicator* group = nullptr);

  // Launches kernel by kernel; marks the end of each part.
  void launch(const Mark& mark);
  // Runs a whole step as the trainer does; with `capture` as a graph from the second call on.
  void train(bool capture);
  // Makes the next call of train() behave like the first.
  void forget_capture() { step_.reset(); }
  // Replays the phase as one graph, captured at the first call; a whole step at the second.
  void replay();

 private:
  const RandomBatch& next_batch() { return batches_[next_++ % batches_.size()]; }
  void launch(const RandomBatch& batch, const Mark& mark);
  Variable forward(const RandomBatch& batch, const Mark& mark);
  void record(const RandomBatch& batch);

  Phase phase_;
  Communicator* group_;
  BucketExchange exchange_;
  ModelInstance instance_;
  std::array<RandomBatch, 4> batches_;
  size_t next_ = 0;
  std::unique_ptr<ShardedWeights> shards_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<TrainingStep> step_;
  RandomBatch input_;
  std::shared_ptr<MemoryPool> pool_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace quern
