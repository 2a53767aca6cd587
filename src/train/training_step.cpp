#include "train/training_step.h"

#include <algorithm>

#include "autograd/ops/binary.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr size_t kMostRecordings = 8;  // more than these drop the least recently used

// sum = part, or += part after the first micro-batch.
void collect(const Tensor& sum, const Tensor& part, bool first) {
  copy(sum, first ? part : add(sum, part).value());
}

}  // namespace

// The key of a recording: a run replays the recording of an equal Kind.
struct TrainingStep::Kind {
  Shape shape;
  bool first, last;
  int64_t count;

  friend bool operator==(const Kind&, const Kind&) = default;
};

struct TrainingStep::Recording {
  Kind kind;
  Tensor tokens, targets;  // the batch that a replay reads
  std::unique_ptr<Graph> graph;
};

bool captures_steps(const ComputeSection& compute) {
  return compute.graph && compute.kernels == KernelKind::fused &&
         Context::current().device().is_cuda();
}

TransformerLM::LossTerms forward_backward(const ModelInstance& instance, const Tensor& tokens,
                                          const Tensor& targets, int64_t count) {
  TransformerLM::LossTerms loss;
  {
    const RangeScope range(RangeKind::phase, "forward");
    loss = instance.model.loss_terms(tokens, targets, 1.0 / static_cast<double>(count));
  }
  const RangeScope range(RangeKind::phase, "backward");
  backward(loss.total);
  return loss;
}

TrainingStep::TrainingStep(ModelInstance& instance, Optimizer& optimizer, bool capture)
    : instance_(instance), optimizer_(optimizer), capture_(capture), loss_(zeros({})) {
  if (instance.model.options().z_loss > 0.0) z_loss_ = zeros({});
  if (!capture_) return;
  const Context& context = Context::current();
  pool_ = context.allocator(context.device())->make_pool();
}

TrainingStep::~TrainingStep() = default;

PoolScope TrainingStep::idle_memory() const {
  const Context& context = Context::current();
  return PoolScope(*context.allocator(context.device()), pool_);
}

void TrainingStep::launch(const Tensor& tokens, const Tensor& targets, const Kind& kind) {
  if (kind.first) instance_.arena.zero_grad();
  const auto loss = forward_backward(instance_, tokens, targets, kind.count);
  collect(loss_, loss.cross_entropy, kind.first);
  if (z_loss_.defined()) collect(z_loss_, loss.z_loss, kind.first);
  if (kind.last) optimizer_.step(loss_);
}

TrainingStep::Recording& TrainingStep::recording_for(const Kind& kind) {
  const auto found = std::find_if(recordings_.begin(), recordings_.end(),
                                  [&](const auto& recording) { return recording->kind == kind; });
  if (found != recordings_.end()) {
    recordings_.splice(recordings_.begin(), recordings_, found);
    return *recordings_.front();
  }
  if (recordings_.size() == kMostRecordings) recordings_.pop_back();
  recordings_.push_front(std::make_unique<Recording>(Recording{kind, {}, {}, {}}));
  return *recordings_.front();
}

// The uncaptured run also uses the recordings' pool: the following capture finds its memory there,
// and no memory is held twice.
void TrainingStep::run(const Tensor& tokens, const Tensor& targets, MicroBatch part) {
  const Kind kind{tokens.shape(), part.first(), part.last(), part.count};
  if (!capture_) return launch(tokens, targets, kind);

  const Context& context = Context::current();
  const int64_t held = context.allocator(context.device())->allocations_in(*pool_);
  QUERN_CHECK(held == 0, "training step: ", held,
              " tensors are held in the memory that the step is about to write to");
  Recording& recording = recording_for(kind);
  if (!recording.tokens.defined()) {
    recording.tokens = empty_like(tokens, "step tokens");
    recording.targets = empty_like(targets, "step targets");
    const PoolScope scope(*context.allocator(context.device()), pool_);
    return launch(tokens, targets, kind);
  }
  copy(recording.tokens, tokens);
  copy(recording.targets, targets);
  if (!recording.graph) {
    const PoolScope scope(*context.allocator(context.device()), pool_);
    recording.graph =
        std::make_unique<Graph>([&] { launch(recording.tokens, recording.targets, kind); });
  }
  recording.graph->launch();
}

}  // namespace quern
