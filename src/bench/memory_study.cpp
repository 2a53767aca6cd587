#include "bench/memory_study.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "bench/random_batch.h"
#include "config/config_parse.h"
#include "profile/memory/memory_recorder.h"
#include "run/model_instance.h"
#include "train/choose_recompute.h"

namespace quern {

namespace {

constexpr std::array kPasses{MemoryPass::forward, MemoryPass::step};

// Fills what was measured.
void measure(MemoryStudy& study) {
  const Context& context = Context::current();
  Allocator& allocator = *context.allocator(context.device());
  allocator.release_cached();
  allocator.reset_peak();
  study.measured = true;
  try {
    study.trace = trace_memory(study.config, study.pass);
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
  study.pass = pass;
  study.device = cat(device);
  study.predicted = predict_peak(study.config, pass, current_target());
  const bool too_large = !device.is_cuda() && !on_cpu && study.predicted.total() > kMostCpuBytes;
  if (!predict && !too_large) {
    measure(study);
  } else if (!device.is_cuda() && !on_cpu) {
    study.device = "a GPU";
    study.predicted = predict_peak(study.config, pass, hopper_target());
  }
  return study;
}

int64_t BlockStudy::measured() const {
  int64_t sum = 0;
  for (const SavedTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

namespace {

// What the second of three blocks saves: the first has no branch to add, the last none to hand on.
std::vector<SavedTensor> saved_tensors(const Config& config, int64_t sequences) {
  const std::string block = "model.layers.1";
  const MemoryRecorder recorder;
  const ModelInstance instance(config.model, config.compute, config.model.init, true,
                               static_cast<uint64_t>(config.train.seed));
  const RandomBatch batch = random_batch(config, sequences);
  const Variable loss = [&] {
    const RangeScope range(RangeKind::phase, "forward");
    return instance.model.loss(batch.tokens, batch.targets);
  }();
  const MemoryTrace trace = recorder.trace();
  std::vector<SavedTensor> saved;
  for (const TracedAllocation& a : trace.allocations) {
    const std::string& module = trace.names[a.place.module];
    if (a.category != MemoryCategory::activations || !lies_in(module, block)) continue;
    const std::string inner = module == block ? "" : module.substr(block.size() + 1);
    saved.push_back({inner, trace.names[a.place.op], trace.names[a.name],
                     trace.names[a.place.shapes], a.bytes});
  }
  return saved;
}

}  // namespace

BlockStudy study_block(const Config& config) {
  Config one = config;
  one.compute.recompute = decided_options(config).recompute;
  one.model.layers = 3;
  one.compute.segment = 1;
  one.model.vocab_size = std::min<int64_t>(config.model.vocab_size, 256);
  BlockStudy study;
  study.config = config;
  study.config.compute.recompute = one.compute.recompute;
  // Of one sequence alone naive attention would save views where it saves copies of several.
  const int64_t batch = config.train.batch, sequences = std::min<int64_t>(batch, 2);
  study.tensors = saved_tensors(one, sequences);
  for (SavedTensor& tensor : study.tensors) tensor.bytes = tensor.bytes * batch / sequences;
  study.predicted = run_dry(current_target(), one.compute, [&] {
    int64_t sum = 0;
    for (const SavedTensor& tensor : saved_tensors(one, batch)) sum += tensor.bytes;
    return sum;
  });
  return study;
}

}  // namespace quern
