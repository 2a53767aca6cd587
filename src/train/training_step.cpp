#include "train/training_step.h"

#include <algorithm>
#include <utility>

#include "autograd/tape.h"
#include "base/error.h"
#include "dist/layout.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr size_t kMostRecordings = 8;  // more than these drop the least recently used

enum Scalar : int64_t { kCrossEntropy, kZLoss, kAsking, kScalars };

Tensor element(const Tensor& scalars, int64_t i) {
  return scalars.slice(0, i, i + 1).reshape({});
}

// The naive twin sums all gradients on every rank, and reads their norm there.
bool shares_norm(const Communicator* ranks, BucketExchange exchange) {
  return ranks != nullptr && ranks->size() > 1 && exchange == BucketExchange::overlapped;
}

}  // namespace

// auto: the fastest on GPUs; on CPUs the one that can save the last step when a rank is lost.
Parallel decided_parallel(const Config& config) {
  if (config.parallel.parallel != Parallel::automatic) return config.parallel.parallel;
  return Context::current().device().is_cuda() ? Parallel::zero1 : Parallel::ddp;
}

ArenaLayoutOf layout_for(const Config& config, const Communicator* ranks) {
  if (ranks == nullptr || ranks->size() == 1) return {};
  return [parallel = decided_parallel(config), exchange = exchange_of(config.compute),
          size = ranks->size(), rank = ranks->rank()](const ParameterTable& table) {
    return layout_of(table, parallel, exchange, size, rank);
  };
}

std::unique_ptr<ShardedWeights> make_shards(ParameterArena& arena, Communicator* ranks,
                                            const Config& config) {
  if (!arena.is_shared_out()) return nullptr;
  return std::make_unique<ShardedWeights>(arena, *ranks, exchange_of(config.compute));
}

// The key of a recording: a run replays the recording of an equal Kind. `part` is the first of its
// kind: micro-batches between the first and the last share one.
struct TrainingStep::Kind {
  Shape shape;
  MicroBatch part;
  bool counted = false;

  friend bool operator==(const Kind&, const Kind&) = default;
};

struct TrainingStep::Recording {
  Kind kind;
  bool launched = false;   // once, without an error
  Tensor tokens, targets;  // the batch that a replay reads
  std::unique_ptr<Graph> graph;
};

bool captures_steps(const ComputeSection& compute) {
  return compute.graph && compute.kernels == KernelKind::fused &&
         Context::current().device().is_cuda();
}

BucketExchange exchange_of(const ComputeSection& compute) {
  return compute.kernels == KernelKind::fused ? BucketExchange::overlapped : BucketExchange::naive;
}

RandomBatch random_batch(const ModelConfig& model, int64_t rows) {
  const Shape shape{rows, model.context};
  const auto V = static_cast<int32_t>(model.vocab_size);
  const Tensor tokens = random_integers(shape, V);  // drawn before the targets
  return {tokens, random_integers(shape, V)};
}

LmHeadResult forward_backward(const ModelInstance& instance, const Tensor& tokens,
                              const Tensor& targets, int64_t count, const Tensor& inverse_count) {
  LmHeadResult loss;
  {
    const RangeScope range(RangeKind::phase, "forward");
    const double share = inverse_count.defined() ? 1.0 : 1.0 / static_cast<double>(count);
    loss = instance.model.loss_terms(tokens, targets, share, inverse_count);
  }
  const RangeScope range(RangeKind::phase, "backward");
  backward(loss.loss);
  return loss;
}

TrainingStep::TrainingStep(ModelInstance& instance, Optimizer& optimizer, bool capture,
                           Communicator* ranks, BucketExchange exchange, ShardedWeights* shards)
    : instance_(instance),
      optimizer_(optimizer),
      shards_(shards),
      capture_(capture),
      ranks_(ranks == nullptr ? 1 : ranks->size()),
      gradients_(make_gradient_sum(
          instance.arena, ranks, exchange,
          shares_norm(ranks, exchange) ? optimizer.take_over_norm() : Tensor(), shards)),
      values_(zeros({kScalars})),
      sums_(zeros({kScalars})),
      loss_(element(sums_, kCrossEntropy)),
      asking_(element(sums_, kAsking)) {
  if (instance.model.options().z_loss > 0.0) z_loss_ = element(sums_, kZLoss);
  if (!capture_) return;
  const Context& context = Context::current();
  pool_ = context.allocator()->make_pool();
}

TrainingStep::~TrainingStep() = default;

PoolScope TrainingStep::idle_memory() const {
  const Context& context = Context::current();
  return PoolScope(*context.allocator(), pool_);
}

void TrainingStep::ask_to_stop() {
  if (!std::exchange(asked_, true)) fill(element(values_, kAsking), 1.0);
}

void TrainingStep::launch(const Tensor& tokens, const Tensor& targets, const Kind& kind) {
  gradients_->begin(kind.part);
  if (shards_ != nullptr) shards_->begin_micro_batch(kind.part.first());
  const auto loss = forward_backward(instance_, tokens, targets, kind.part.count * ranks_,
                                     kind.counted ? inverse_count_ : Tensor());
  if (shards_ != nullptr) shards_->end_micro_batch();
  copy(element(values_, kCrossEntropy), loss.cross_entropy);
  if (z_loss_.defined()) copy(element(values_, kZLoss), loss.z_loss);
  gradients_->finish(sums_, values_);
  if (kind.part.last()) optimizer_.step(loss_);
}

TrainingStep::Recording& TrainingStep::recording_for(const Kind& kind) {
  const auto found = std::find_if(recordings_.begin(), recordings_.end(),
                                  [&](const auto& recording) { return recording->kind == kind; });
  if (found != recordings_.end()) {
    recordings_.splice(recordings_.begin(), recordings_, found);
    return *recordings_.front();
  }
  if (recordings_.size() == kMostRecordings) recordings_.pop_back();
  recordings_.push_front(std::make_unique<Recording>(Recording{kind, false, {}, {}, {}}));
  return *recordings_.front();
}

// The uncaptured run also uses the recordings' pool: the following capture finds its memory there,
// and no memory is held twice.
void TrainingStep::run(const Tensor& tokens, const Tensor& targets, MicroBatch part,
                       std::optional<int64_t> counted) {
  if (!part.first() && !part.last()) part.index = 1;
  const Kind kind{tokens.shape(), part, counted.has_value()};
  if (counted) {  // outside of the captures, which read it
    if (!inverse_count_.defined()) inverse_count_ = zeros({});
    fill(inverse_count_, *counted > 0 ? 1.0 / static_cast<double>(*counted) : 0.0);
  }
  gradients_->prepare(part.count);
  if (shards_ != nullptr) shards_->begin_step();
  if (!capture_) return launch(tokens, targets, kind);

  const Context& context = Context::current();
  const int64_t held = context.allocator()->allocations_in(*pool_);
  QUERN_CHECK(held == 0, "training step: ", held,
              " tensors are held in the memory that the step is about to write to");
  Recording& recording = recording_for(kind);
  if (!recording.launched) {
    recording.tokens = empty_like(tokens, "step tokens");
    recording.targets = empty_like(targets, "step targets");
    const PoolScope scope(*context.allocator(), pool_);
    launch(tokens, targets, kind);
    recording.launched = true;
    return;
  }
  copy(recording.tokens, tokens);
  copy(recording.targets, targets);
  if (!recording.graph) {
    const PoolScope scope(*context.allocator(), pool_);
    recording.graph =
        std::make_unique<Graph>([&] { launch(recording.tokens, recording.targets, kind); });
  }
  recording.graph->launch();
}

}  // namespace quern
