// How a Trainer comes into being: data, model, run folder; new or resumed. And the samples it
// writes.
#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/tokenizer_files.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"
#include "train/config_print.h"
#include "train/generate.h"
#include "train/model_from.h"
#include "train/process_time.h"
#include "train/recompute.h"
#include "train/trainer.h"

namespace quern {

namespace {

Dataset open_data(const Config& config) {
  if (config.data.train.empty()) {
    throw UsageError(
        "train: no data; give --train FILE, a text file, a folder of text files, a token file, a "
        "pattern of token files or a folder of `quern data prepare`");
  }
  return open_dataset({config.data.train, config.data.validation, config.data.validation_fraction,
                       config.data.format},
                      config.model.context);
}

// Token files may be of bytes too, which need no folder tokenizer/.
RunTokenizer open_run_tokenizer(const Config& config, const Dataset& data,
                                const TokenFacts& facts) {
  RunTokenizer found = find_run_tokenizer(config, data.is_text);
  if (!found.tokenizer && facts.of_bytes()) found = {"bytes", open_tokenizer("bytes")};
  check_tokenizer(facts, found);
  return found;
}

// The vocabulary the data needs when none is set; otherwise the data must fit the one that is.
Config resolve(Config config, const Dataset& data, const TokenFacts& facts,
               const RunTokenizer& tokenizer) {
  std::string whose = "vocab";
  if (!config.model.from.empty()) whose = cat("the model of ", config.model.from);
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = needed_vocabulary(data, facts, tokenizer);
    whose = "the tokenizer";
  }
  check_vocabulary(data, facts, config.model.vocab_size, whose);
  return config;
}

RunFolder open_folder(const Config& config) {
  if (config.run.resume.empty()) return RunFolder::create(config);
  return RunFolder::open(config.run.resume);
}

AdamWOptions optimizer_options(const Config& config) {
  AdamWOptions options = adamw_options(config);
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
      data_(open_data(config)),
      facts_(read_token_facts(data_)),
      tokenizer_(open_run_tokenizer(config, data_, facts_)) {
  config_ = resolve(config, data_, facts_, tokenizer_);
  batches_ = batch_options(config_.data, data_, facts_, tokenizer_);
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
  config_.compute.recompute =
      decided_options(config_).recompute;  // what the run's folder then says
  instance_ = std::make_unique<ModelInstance>(config_.model, config_.compute, config_.model.init,
                                              true, seed);
  const bool starts_from = config_.run.resume.empty() && !config_.model.from.empty();
  if (starts_from) load_weights_from(instance_->arena, config_.model);
  optimizer_ = std::make_unique<AdamW>(instance_->arena, optimizer_options(config_));
  step_ = std::make_unique<TrainingStep>(*instance_, *optimizer_, captures_steps(config_.compute));
  const OptimizerSection& o = config_.optimizer;
  schedule_ = {o.schedule, o.lr, o.min_lr, o.warmup, config_.train.steps, o.decay_fraction};
  state_.sampler.seed = seed;
  folder_ = open_folder(config_);
  if (starts_from) copy_source(config_.model.from, folder_->source());
  if (!config_.run.resume.empty()) resume();
  keep_tokenizer();
  metrics_ =
      std::make_unique<MetricsLog>(folder_->metrics(), saved_step_, config_.train.tensorboard);
  state_.sampler.batch = static_cast<uint64_t>(state_.iteration * config_.train.accumulate);
  feeder_ = std::make_unique<BatchFeeder>(data_.train, config_.train.batch, config_.model.context,
                                          state_.sampler, batches_);
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
  const std::string hash =
      tokenizer_.tokenizer ? tokenizer_.tokenizer->hash() : facts_.tokenizer_hash;
  QUERN_CHECK(hash.empty() || state_.tokenizer.empty() || hash == state_.tokenizer,
              "resume: the run's tokenizer has hash ", state_.tokenizer, ", found ", hash, ": ",
              tokenizer_.tokenizer ? tokenizer_.path.string() : facts_.sidecar.string());
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

// The run folder has its own copy, for samples, `quern generate` and `quern export`.
void Trainer::keep_tokenizer() {
  const bool bytes = tokenizer_.tokenizer && tokenizer_.tokenizer->kind() == "bytes";
  if (!tokenizer_.tokenizer || bytes || std::filesystem::exists(folder_->tokenizer())) return;
  copy_tokenizer(tokenizer_.path, folder_->tokenizer());
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
  const Tokenizer& tokenizer = *tokenizer_.tokenizer;
  std::vector<int32_t> tokens = encode_prompt(tokenizer, config_.sample.prompt);
  Generation made;
  try {
    const PoolScope memory = step_->idle_memory();
    made = generate(instance_->model, tokens, with_end_token(config_.sample, &tokenizer));
  } catch (const NonfiniteLogits& error) {  // on_nonfinite says what becomes of such a run
    observer_.on_warning(cat("no sample after step ", state_.iteration, ": ", error.what()));
    return;
  }
  tokens.insert(tokens.end(), made.tokens.begin(), made.tokens.end());
  const std::string text = tokenizer.decode(tokens);
  std::ofstream out(folder_->samples(), std::ios::app);
  out << "--- step " << state_.iteration << "\n" << text << "\n" << std::flush;
  QUERN_CHECK(out, folder_->samples().string(), ": cannot be written; is the disk full?");
  observer_.on_sample(state_.iteration, text);
}

}  // namespace quern
