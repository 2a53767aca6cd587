#include "bench/memory_study.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "autograd/tape.h"
#include "bench/random_batch.h"
#include "nn/memory_sizes.h"
#include "optim/adamw.h"
#include "profile/memory_recorder.h"
#include "train/config_parse.h"
#include "train/recompute.h"
#include "train/setup.h"
#include "train/training_step.h"

namespace quern {

namespace {

constexpr int kSteps = 2;  // the second begins as all later ones do
constexpr std::array kPasses{MemoryPass::forward, MemoryPass::step};

ModelInstance make_model(const Config& config, bool training) {
  return {config.model, config.compute, config.model.init, training,
          static_cast<uint64_t>(config.train.seed)};
}

Variable forward(const ModelInstance& instance, const RandomBatch& batch) {
  const RangeScope range(RangeKind::phase, "forward");
  return instance.model.loss(batch.tokens, batch.targets);
}

// The trace is taken before anything is given back.
MemoryTrace trace_pass(const Config& config, MemoryPass pass, const MemoryRecorder& recorder) {
  const bool training = pass == MemoryPass::step;
  ModelInstance instance = make_model(config, training);
  const RandomBatch batch = random_batch(config, config.train.batch);
  if (!training) {
    const NoGrad no_grad;
    for (int i = 0; i < kSteps; ++i) forward(instance, batch);
    return recorder.trace();
  }
  AdamW optimizer(instance.arena, adamw_options(config));
  optimizer.set_learning_rate(config.optimizer.lr);
  TrainingStep step(instance, optimizer, false);
  for (int i = 0; i < kSteps; ++i) step.run(batch.tokens, batch.targets, {});
  Context::current().synchronize();
  return recorder.trace();
}

// Fills what was measured.
void measure(MemoryStudy& study) {
  const Context& context = Context::current();
  Allocator& allocator = *context.allocator(context.device());
  allocator.release_cached();
  allocator.reset_peak();
  study.measured = true;
  const MemoryRecorder recorder;
  try {
    study.trace = trace_pass(study.config, study.pass, recorder);
  } catch (const OutOfMemory& error) {
    study.out_of_memory = error.what();
    return;
  }
  study.peak_bytes = allocator.stats().peak_allocated;
  study.by_category = peak_of(study.trace).by_category;
}

bool lies_in(const std::string& module, const std::string& block) {
  return module == block || module.starts_with(block + ".");
}

}  // namespace

const char* name_of(MemoryPass pass) {
  switch (pass) {
    case MemoryPass::forward: return "forward";
    case MemoryPass::step: return "step";
  }
  fail("memory: unknown pass");
}

std::vector<MemoryPass> parse_passes(const std::string& text) {
  std::vector<MemoryPass> passes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto found = std::find_if(kPasses.begin(), kPasses.end(),
                                    [&](MemoryPass pass) { return word == name_of(pass); });
    if (found == kPasses.end()) {
      throw UsageError(cat("--passes has '", word, "', expected forward or step",
                           did_you_mean(word, {"forward", "step"})));
    }
    if (std::find(passes.begin(), passes.end(), *found) != passes.end()) {
      throw UsageError(cat("--passes has '", word, "' twice"));
    }
    passes.push_back(*found);
  }
  if (passes.empty()) throw UsageError("--passes is empty, expected some of forward,step");
  return passes;
}

double MemoryStudy::deviation() const {
  if (peak_bytes == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto found = static_cast<double>(peak_bytes);
  return 100.0 * (static_cast<double>(predicted.total()) - found) / found;
}

MemoryStudy study_memory(const Config& config, MemoryPass pass, bool predict, bool on_cpu) {
  if (config.model.vocab_size < 1) {
    throw UsageError("--vocab is 0, expected at least 1: there is no data to tell it");
  }
  const Device device = Context::current().device();
  MemoryStudy study;
  study.config = config;
  study.config.compute.recompute = decided_options(config).recompute;
  const auto predicted = [&](const MemoryTarget& target) {
    return predict_peak(study.config.model, study.config.compute, config.train.batch,
                        config.model.context, pass, target);
  };
  study.pass = pass;
  study.device = cat(device);
  study.predicted = predicted(current_target());
  const bool too_large = !device.is_cuda() && !on_cpu && study.predicted.total() > kMostCpuBytes;
  if (!predict && !too_large) {
    measure(study);
  } else if (!device.is_cuda() && !on_cpu) {
    study.device = "a GPU";
    study.predicted = predicted(hopper_target());
  }
  return study;
}

int64_t BlockStudy::measured() const {
  int64_t sum = 0;
  for (const SavedTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

BlockStudy study_block(const Config& config) {
  constexpr const char* kBlock = "model.layers.1";
  Config one = config;
  one.compute.recompute = decided_options(config).recompute;
  one.model.layers = 3;  // the first has no branch to add, the last none to hand on
  one.compute.segment = 1;
  one.model.vocab_size = std::min<int64_t>(config.model.vocab_size, 256);
  const MemoryRecorder recorder;
  ModelInstance instance = make_model(one, true);
  // Of one sequence alone naive attention would save views where it saves copies of several.
  const int64_t sequences = std::min<int64_t>(config.train.batch, 2);
  const RandomBatch batch = random_batch(one, sequences);
  const Variable loss = forward(instance, batch);
  const MemoryTrace trace = recorder.trace();

  BlockStudy study;
  study.config = config;
  study.config.compute.recompute = one.compute.recompute;
  for (const TracedAllocation& a : trace.allocations) {
    const std::string& module = trace.names[a.place.module];
    if (a.category != MemoryCategory::activations || !lies_in(module, kBlock)) continue;
    const std::string inner = module == kBlock ? "" : module.substr(std::string(kBlock).size() + 1);
    study.tensors.push_back({inner, trace.names[a.place.op], trace.names[a.name],
                             trace.names[a.place.shapes],
                             a.bytes * config.train.batch / sequences});
  }
  one.model.layers = 1;
  const detail::MemorySizes s =
      detail::memory_sizes(one.model, one.compute, config.train.batch, config.model.context);
  // Under recomputation its inputs: the stream and the branch.
  study.predicted = one.compute.recompute == Recompute::blocks
                        ? s.tokens * s.C * (s.residual + s.activation)
                        : s.tokens * detail::block_bytes(s);
  return study;
}

}  // namespace quern
