#include "bench/phase_runner.h"

#include "autograd/tape.h"
#include "dist/rank_memory.h"
#include "tensor/factory.h"
#include "train/choose_recompute.h"

namespace quern {

size_t part_count(Phase phase) {
  return phase == Phase::fwd ? 1 : phase == Phase::fwdbwd ? 2 : 3;
}

void check_vocabulary(const Config& config) {
  if (config.model.vocab_size > 0) return;
  throw UsageError("--vocab is 0, expected at least 1: there is no data to tell it");
}

PhaseRunner::PhaseRunner(const Config& config, Phase phase, Communicator* group)
    : phase_(phase),
      group_(group),
      exchange_(exchange_of(config.compute)),
      instance_(config.model, decided_options(config), config.model.init, phase != Phase::fwd,
                static_cast<uint64_t>(config.train.seed), layout_for(config, group),
                rank_pool(group)) {
  for (RandomBatch& batch : batches_) batch = random_batch(config.model, config.train.batch);
  if (phase != Phase::step) return;
  shards_ = make_shards(instance_.arena, group, config);
  optimizer_ = make_optimizer(instance_.arena, config, group);
  optimizer_->set_learning_rate(config.optimizer.lr);
}

void PhaseRunner::launch(const Mark& mark) {
  launch(next_batch(), mark);
}

void PhaseRunner::train(bool capture) {
  if (!step_) {
    step_.emplace(instance_, *optimizer_, capture, group_, exchange_, shards_.get());
  }
  const RandomBatch& batch = next_batch();
  step_->run(batch.tokens, batch.targets, {});
  if (group_) group_->watch(Context::current().cuda_stream());
}

void PhaseRunner::replay() {
  if (phase_ == Phase::step) {
    train(true);
    return;
  }
  const RandomBatch& batch = next_batch();
  if (!graph_) record(batch);
  copy(input_.tokens, batch.tokens);
  copy(input_.targets, batch.targets);
  graph_->launch();
}

void PhaseRunner::launch(const RandomBatch& batch, const Mark& mark) {
  if (phase_ == Phase::fwd) {
    const NoGrad no_grad;
    forward(batch, mark);
    return;
  }
  instance_.arena.zero_grad();
  const Variable loss = forward(batch, mark);
  {
    const RangeScope range(RangeKind::phase, "backward");
    backward(loss);
  }
  mark();
  if (!optimizer_) return;
  optimizer_->step(loss.value());
  mark();
}

Variable PhaseRunner::forward(const RandomBatch& batch, const Mark& mark) {
  const RangeScope range(RangeKind::phase, "forward");
  Variable loss = instance_.model.loss(batch.tokens, batch.targets);
  mark();
  return loss;
}

void PhaseRunner::record(const RandomBatch& batch) {
  Allocator& allocator = current_allocator();
  input_ = {empty_like(batch.tokens, "batch"), empty_like(batch.targets, "batch")};
  pool_ = allocator.make_pool();
  const PoolScope scope(allocator, pool_);
  graph_ = std::make_unique<Graph>([&] { launch(input_, [] {}); });
}

}  // namespace quern
