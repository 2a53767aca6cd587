// How a Trainer comes into being: data, model, run folder; new or resumed. And the samples it
// writes.
#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "io/checkpoint.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"
#include "train/config_print.h"
#include "train/generate.h"
#include "train/process_time.h"
#include "train/trainer.h"

namespace quern {

namespace {

Dataset open_data(const Config& config) {
  if (config.data.train.empty()) {
    throw UsageError(
        "train: no data; give --train FILE, a text file, a folder of text files or a token file");
  }
  return open_dataset({config.data.train, config.data.validation, config.data.validation_fraction,
                       config.data.format},
                      config.model.context);
}

// The vocabulary the data needs when none is set; otherwise the data must fit the one that is.
Config resolve(Config config, const Dataset& data) {
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = data.vocabulary();
  } else {
    data.train.check_vocabulary(config.model.vocab_size);
    data.validation.check_vocabulary(config.model.vocab_size);
  }
  return config;
}

RunFolder open_folder(const Config& config) {
  if (config.run.resume.empty()) return RunFolder::create(config);
  return RunFolder::open(config.run.resume);
}

AdamWOptions optimizer_options(const Config& config) {
  const OptimizerSection& o = config.optimizer;
  AdamWOptions options;
  options.beta1 = o.beta1;
  options.beta2 = o.beta2;
  options.eps = o.eps;
  options.weight_decay = o.weight_decay;
  options.clip = o.clip;
  options.kernels = config.compute.kernels;
  options.halt_on_nonfinite = config.train.on_nonfinite == OnNonfinite::stop;
  return options;
}

}  // namespace

std::string Trainer::device_name() {
  const Device device = Context::current().device();
  if (device.is_cuda()) return cuda::device_info(device.index).name;
  return "CPU";
}

Trainer::Trainer(const Config& config, TrainObserver& observer)
    : started_{.context = seconds_since_process_start()},
      config_(config),
      observer_(observer),
      data_(open_data(config)) {
  config_ = resolve(config, data_);
  validate(config_);
  try {
    start();
  } catch (const OutOfMemory& error) {
    memory_.explain(error, config_, MemoryPass::step, folder_ ? folder_->path() : ".");
  }
}

Trainer::~Trainer() = default;

void Trainer::start() {
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  instance_ = std::make_unique<ModelInstance>(config_.model, config_.compute, config_.model.init,
                                              true, seed);
  optimizer_ = std::make_unique<AdamW>(instance_->arena, optimizer_options(config_));
  step_ = std::make_unique<TrainingStep>(*instance_, *optimizer_, captures_steps(config_.compute));
  const OptimizerSection& o = config_.optimizer;
  schedule_ = {o.schedule, o.lr, o.min_lr, o.warmup, config_.train.steps, o.decay_fraction};
  state_.sampler.seed = seed;
  folder_ = open_folder(config_);
  if (!config_.run.resume.empty()) resume();
  metrics_ =
      std::make_unique<MetricsLog>(folder_->metrics(), saved_step_, config_.train.tensorboard);
  state_.sampler.batch = static_cast<uint64_t>(state_.iteration * config_.train.accumulate);
  feeder_ = std::make_unique<BatchFeeder>(data_.train, config_.train.batch, config_.model.context,
                                          state_.sampler);
  const auto allocator = Context::current().allocator(Context::current().device());
  allocator->release_cached();
  allocator->reset_peak();  // of training, not of what led to it
  started_.model = seconds_since_process_start();
  observer_.on_start(
      {config_, folder_->path(), device_name(), parameter_count(config_.model),
       predict_memory(config_.model, config_.compute, config_.train.batch, config_.model.context),
       data_.train.size(), data_.validation.size(), state_.iteration});
}

// From the newest checkpoint, or the one that run.resume names. The folder's configuration becomes
// the one in force, so that the next --resume needs no flags again.
void Trainer::resume() {
  const auto checkpoint = find_checkpoint(config_.run.resume, false);
  state_ = load_train_state(checkpoint, instance_->arena, config_.model);
  QUERN_CHECK(state_.iteration < config_.train.steps, "resume: ", checkpoint.string(),
              " is at step ", state_.iteration, " of ", config_.train.steps,
              "; give more --steps to go on");
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  QUERN_CHECK(state_.sampler.seed == seed, "resume: the run's seed is ", state_.sampler.seed,
              ", found seed = ", seed);
  optimizer_->set_progress(state_.step, state_.skipped);
  saved_step_ = state_.iteration;
  use_saved_algorithms();
  forget_later_checkpoints();
  Config resumed = config_;
  resumed.run = {folder_->path().string(), ""};
  save_config(resumed, folder_->config().string());
}

// Going back to an earlier checkpoint forgets what came after it, the best one perhaps too.
void Trainer::forget_later_checkpoints() {
  const auto checkpoints = folder_->checkpoints();
  const int64_t removed = remove_checkpoints_after(checkpoints, state_.iteration);
  if (removed > 0) {
    observer_.on_warning(cat("going back to step ", state_.iteration, ": ", removed,
                             " later checkpoint(s) are removed"));
  }
  const std::vector<int64_t> steps = checkpoint_steps(checkpoints);
  if (std::find(steps.begin(), steps.end(), state_.best_iteration) != steps.end()) {
    mark_best(checkpoints, state_.best_iteration);
  } else {
    state_.best_loss = std::numeric_limits<double>::infinity();
    state_.best_iteration = 0;
  }
}

// The products of the steps before were computed with these, so the steps to come are. Checkpoints
// of older runs have none; then those of the run are taken.
void Trainer::use_saved_algorithms() {
  if (!Context::current().device().is_cuda()) return;
  if (!state_.gemm_algorithms.empty()) {
    if (use_gemm_table(state_.gemm_algorithms)) return;
  } else if (!std::filesystem::exists(folder_->gemm_table()) ||
             use_gemm_table_file(folder_->gemm_table().string())) {
    return;
  }
  observer_.on_warning(
      "the run was on another GPU or library version: it goes on, but not with the same bits");
}

void Trainer::sample_now() {
  const std::vector<int32_t> prompt = encode_bytes(config_.sample.prompt);
  const std::vector<int32_t> tokens = [&] {
    const PoolScope memory = step_->idle_memory();
    return generate(instance_->model, prompt, config_.sample);
  }();
  const std::string text = config_.sample.prompt + decode_bytes(tokens);
  std::ofstream out(folder_->samples(), std::ios::app);
  out << "--- step " << state_.iteration << "\n" << text << "\n" << std::flush;
  QUERN_CHECK(out, folder_->samples().string(), ": cannot be written; is the disk full?");
  observer_.on_sample(state_.iteration, text);
}

}  // namespace quern
