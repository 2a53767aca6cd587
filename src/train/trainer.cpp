#include "train/trainer.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/first_line.h"
#include "base/round_up.h"
#include "base/shell_word.h"
#include "config/config_print.h"
#include "data/text_stream.h"
#include "dist/rank_memory.h"
#include "generate/generate.h"
#include "io/append_file.h"
#include "io/atomic_file.h"
#include "io/small_file.h"
#include "kernels/cpu/level.h"
#include "model/model_cost.h"
#include "run/checkpoint.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "run/make_optimizer.h"
#include "run/nonfinite.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"
#include "text/tokenizer_files.h"
#include "train/choose_recompute.h"
#include "train/measured_flops.h"
#include "train/process_time.h"

namespace quern {

std::string Trainer::device_name() {
  const Device device = Context::current().device();
  if (device.is_cuda()) return cuda::device_info(device.index).name;
  return "CPU";
}

Trainer::Trainer(const Config& config, TrainObserver& observer, Communicator* ranks)
    : started_{.context = seconds_since_process_start()},
      config_(config),
      observer_(observer),
      team_(ranks),
      data_(open_training_data(config_)),
      batches_(batch_options(config_.data, data_.tokens, data_.facts, data_.tokenizer)) {
  batches_.vocabulary = config_.model.vocab_size;
  batches_.rank = static_cast<uint64_t>(team_.rank());
  batches_.ranks = static_cast<uint64_t>(team_.count());
  batches_.per_step = static_cast<uint64_t>(config_.train.accumulate) * batches_.ranks;
  validate(config_);
  validate_ranks(config_.parallel);
  split_stop_strings(config_.sample.stop);
  check_stop_token(config_.sample, config_.model.vocab_size);
  memory_.run(config_, MemoryPass::step, snapshots_, [this] { start(); });
}

void Trainer::start() {
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  check_data_of_ranks();
  check_processors_of_ranks();
  decide_recompute();
  const MemoryCapacity memory = machine_memory(team_);
  team_.on_each(
      [&] {
        check_machine_memory(config_, MemoryPass::step, memory);
        return std::string();
      },
      "the memory of the machine");
  instance_ = std::make_unique<ModelInstance>(config_.model, config_.compute, config_.model.init,
                                              true, seed, layout_for(config_, team_.group()),
                                              rank_pool(team_.group()));
  const auto begins = [&] {
    return config_.run.resume.empty() || !has_checkpoint(config_.run.resume) ? "anew" : "";
  };
  const bool anew = !team_.of_leader(begins, "where to begin").empty();
  const bool starts_from = anew && !config_.model.from.empty();
  if (starts_from) {
    team_.on_each(
        [&] {
          load_weights_from(instance_->arena, config_.model);
          return std::string();
        },
        "the reading of the weights", WorkLength::long_lasting);
  }
  const BucketExchange exchange = exchange_of(config_.compute);
  shards_ = make_shards(instance_->arena, team_.group(), config_);
  optimizer_ = make_optimizer(instance_->arena, config_, team_.group());
  step_ = std::make_unique<TrainingStep>(*instance_, *optimizer_, captures_steps(config_.compute),
                                         team_.group(), exchange, shards_.get());
  const OptimizerSection& o = config_.optimizer;
  schedule_ = {o.schedule, o.lr, o.min_lr, o.warmup, config_.train.steps, o.decay_fraction};
  open_folder();
  snapshots_ = folder_->path();
  if (team_.leads() && starts_from) copy_source(config_.model.from, folder_->source());
  if (!anew) resume();
  if (team_.leads() && anew && !config_.run.resume.empty()) {
    observer_.on_warning(cat(folder_->path().string(),
                             " has no checkpoint yet: the run begins again at its first step"));
  }
  note_data();
  if (team_.leads()) {
    keep_tokenizer();
    // The logs of a resumed run go on after the checkpoint's step.
    const int64_t last = anew ? -1 : state_.iteration;
    metrics_ = std::make_unique<MetricsLog>(folder_->metrics(), last, config_.train.tensorboard);
    sampled_ = folder_->keep_samples_until(last);
  }
  feed_from(state_.iteration);
  const auto allocator = Context::current().allocator();
  allocator->release_cached();
  allocator->reset_peak();  // the peak of training excludes the start
  started_.model = seconds_since_process_start();
  observer_.on_start({config_, folder_->path(), device_name(), parameter_count(config_.model),
                      predict_peak(config_, MemoryPass::step, current_target()),
                      data_.tokens.train.size(), data_.tokens.validation.size(), state_.iteration});
}

// Ranks of several machines may read copies of the data, and take longer to open them.
void Trainer::check_data_of_ranks() const {
  const std::string hash = data_.tokenizer_hash();
  team_.check_alike(
      cat(data_.train_fingerprint, " to train on, ", data_.validation_fingerprint,
          " to validate on, ", hash.empty() ? "no tokenizer" : cat("tokenizer ", hash)),
      "their data", WorkLength::long_lasting);
}

// Under ddp each rank computes the whole update itself. The bits of Muon's BF16 products depend on
// the processor, so the ranks' weights would drift apart.
void Trainer::check_processors_of_ranks() const {
  if (config_.optimizer.kind != OptimizerKind::muon) return;
  if (decided_parallel(config_) != Parallel::ddp) return;
  const bool is_cuda = Context::current().device().is_cuda();
  team_.check_alike(is_cuda ? device_name() : cat("CPU level ", kernels::cpu::level()),
                    "their processors (Muon under ddp needs equal ones)");
}

// Saved in the run folder. Under fsdp the collectives depend on it, so the rank with the least
// memory decides for all.
void Trainer::decide_recompute() {
  if (config_.compute.recompute != Recompute::automatic) return;
  const std::vector<std::string> of_ranks = team_.on_each(
      [&] { return cat(static_cast<int>(recompute_of_run(config_))); }, "the choice of recompute");
  config_.compute.recompute =
      static_cast<Recompute>(std::stoi(*std::ranges::max_element(of_ranks)));
  if (team_.leads() && config_.compute.recompute == Recompute::blocks) {
    observer_.on_warning(
        "recompute = auto chose blocks: a step fits the memory only so, and its forward runs "
        "twice. A smaller batch with a larger accumulate may be faster");
  }
}

// The first rank makes or locks the run folder, and the others read it.
void Trainer::open_folder() {
  const auto open = [this] {
    if (config_.run.resume.empty()) {
      folder_ = RunFolder::create(config_);
    } else {
      folder_ = RunFolder::open(config_.run.resume);
      folder_->lock();
    }
    return folder_->path().string();
  };
  const std::string path = team_.of_leader(open, "the run folder's path");
  if (!team_.leads()) folder_ = RunFolder::open(path);
}

int64_t Trainer::windows_a_step() const {
  return config_.train.batch * config_.train.accumulate * team_.count();
}

SamplerState Trainer::sampler_after(int64_t steps) const {
  const int64_t windows = begun_.windows + (steps - begun_.step) * windows_a_step();
  return {static_cast<uint64_t>(config_.train.seed), static_cast<uint64_t>(windows)};
}

// This rank's batches and dropout of the steps after `steps`.
void Trainer::feed_from(int64_t steps) {
  const SamplerState first = sampler_after(steps);
  feeder_.reset();
  feeder_ = std::make_unique<BatchFeeder>(data_.tokens.train, config_.train.batch,
                                          config_.model.context, first, batches_);
  const int64_t batch = ceil_div(static_cast<int64_t>(first.draw), config_.train.batch);
  instance_->model.start_dropout(first.seed, static_cast<uint64_t>(batch) + batches_.rank,
                                 batches_.ranks);
}

// Loads the newest checkpoint, or the one in run.resume. Saves the configuration in force to the
// run folder, so that the next --resume needs no flags.
void Trainer::resume() {
  const auto find = [this] {
    const auto warn = [this](const std::string& what) { observer_.on_warning(what); };
    return checkpoint_to_resume(config_.run.resume, warn).string();
  };
  const std::filesystem::path checkpoint =
      team_.of_leader(find, "the checkpoint's path", WorkLength::long_lasting);
  team_.on_each(
      [&] {
        state_ = load_train_state(checkpoint, instance_->arena, config_.model, *optimizer_);
        return std::string();
      },
      "the reading of the checkpoint", WorkLength::long_lasting);
  logged_ = read_logged_state(folder_->metrics(), state_.iteration);
  const bool finished = state_.iteration == config_.train.steps && logged_.done;
  QUERN_CHECK(!finished && state_.iteration <= config_.train.steps, "resume: ", checkpoint.string(),
              " is at step ", state_.iteration, " of ", config_.train.steps,
              "; give more --steps to continue");
  const std::string hash = data_.tokenizer_hash();
  QUERN_CHECK(
      hash.empty() || state_.tokenizer.empty() || hash == state_.tokenizer,
      "resume: the run's tokenizer has hash ", state_.tokenizer, ", found ", hash, ": ",
      data_.tokenizer.tokenizer ? data_.tokenizer.path.string() : data_.facts.sidecar.string());
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  QUERN_CHECK(state_.sampler.seed == seed, "resume: the run's seed is ", state_.sampler.seed,
              ", found seed = ", seed);
  optimizer_->set_progress(state_.step, state_.skipped);
  begun_ = {state_.iteration, static_cast<int64_t>(state_.sampler.draw)};
  if (state_.batches > 0) begun_.windows = state_.batches * config_.train.batch;
  const auto saved = [&] { return is_saved(checkpoint) ? "saved" : ""; };
  if (!team_.of_leader(saved, "the run's checkpoint").empty()) saved_step_ = state_.iteration;
  use_saved_algorithms();
  const auto best = [this] { return keeps_best_of_earlier() ? "kept" : ""; };
  if (team_.of_leader(best, "the best checkpoint").empty()) {
    state_.best_loss = std::numeric_limits<double>::infinity();
    state_.best_iteration = 0;
  }
  if (!team_.leads()) return;
  Config resumed = config_;
  resumed.run = {folder_->path().string(), ""};
  save_config(resumed, folder_->config().string());
}

// Whether the run's folder has this step's checkpoint, of which `checkpoint` may be a copy that
// outlived it. Throws when their contents differ.
bool Trainer::is_saved(const std::filesystem::path& checkpoint) const {
  const auto own = checkpoint_path(folder_->checkpoints(), state_.iteration);
  if (!std::filesystem::exists(own)) return false;
  const auto manifest_of = [](const std::filesystem::path& folder) {
    return read_if_there(folder / "manifest.json");
  };
  const bool same =
      std::filesystem::equivalent(own, checkpoint) || manifest_of(own) == manifest_of(checkpoint);
  QUERN_CHECK(same, "resume: ", checkpoint.string(), " is of step ", state_.iteration,
              ", of which the run has another checkpoint, ", own.string(),
              "; resume that one, or move it out of the run's folder");
  return true;
}

// Keeps the data's fingerprints. Other data than the checkpoint's are allowed: a run may go on with
// more of them.
void Trainer::note_data() {
  const auto note = [this](const TokenSource& source, const std::string& now, std::string& known) {
    const std::string then = std::exchange(known, now);
    if (then.empty() || known == then) return;
    observer_.on_warning(cat(source.name(), " has changed since the checkpoint: it has ", known,
                             "; the checkpoint's data had ", then));
  };
  note(data_.tokens.train, data_.train_fingerprint, state_.train_data);
  note(data_.tokens.validation, data_.validation_fingerprint, state_.validation_data);
}

// Copies the tokenizer to the run folder for samples, `quern generate` and `quern export`.
void Trainer::keep_tokenizer() {
  const bool bytes = data_.tokenizer.tokenizer && data_.tokenizer.tokenizer->kind() == "bytes";
  if (!data_.tokenizer.tokenizer || bytes || std::filesystem::exists(folder_->tokenizer())) return;
  copy_tokenizer(data_.tokenizer.path, folder_->tokenizer());
}

// Resuming from an earlier checkpoint sets the later ones aside, possibly the best one too. They
// are removed when the run has a new one. Returns whether the run still has its best checkpoint; a
// run stopped before any validation has none.
bool Trainer::keeps_best_of_earlier() {
  const auto checkpoints = folder_->checkpoints();
  const int64_t later = set_aside_checkpoints_after(checkpoints, state_.iteration);
  if (later > 0) {
    observer_.on_warning(cat("going back to step ", state_.iteration, ": ", later,
                             " later checkpoint(s) are set aside as step_N.later, and removed at "
                             "the next save"));
  }
  const std::vector<int64_t> steps = checkpoint_steps(checkpoints);
  const int64_t best = state_.best_iteration;
  const bool kept = best > 0 && std::ranges::find(steps, best) != steps.end();
  if (kept) {
    mark_best(checkpoints, best);
  } else {
    std::filesystem::remove(checkpoints / "best");
  }
  return kept;
}

// Uses the algorithms of the previous steps again. Checkpoints of older runs have none; their table
// lies in the run folder.
void Trainer::use_saved_algorithms() {
  if (!Context::current().device().is_cuda()) return;
  if (!state_.gemm_algorithms.empty()) {
    if (use_gemm_table(state_.gemm_algorithms)) return;
  } else if (!std::filesystem::exists(folder_->gemm_table()) ||
             use_gemm_table_file(folder_->gemm_table().string())) {
    return;
  }
  observer_.on_warning(
      "the run was on another GPU or library version: it continues, but not with the same bits");
}

// One step. Its weights change with the last micro-batch alone.
bool Trainer::train_step() {
  if (!team_.is_one() && stop_ != nullptr && *stop_) step_->ask_to_stop();
  optimizer_->set_learning_rate(schedule_.at(state_.iteration));
  for (MicroBatch part{0, config_.train.accumulate}; part.index < part.count; ++part.index) {
    if (part.index > 0 && team_.is_one() && stopping()) return false;
    const DeviceBatch batch = feeder_->next();
    step_->run(batch.tokens, batch.targets, part, batch.counted);
    team_.watch();
  }
  state_.iteration += 1;
  readback_.post(state_.iteration, step_->loss(), step_->z_loss(), step_->ranks_asking(),
                 optimizer_->device_state());
  return true;
}

// Runs after the first step of this process, which has loaded the kernels and chosen algorithms.
// Work that can wait is done here, so that the first step ends early.
void Trainer::finish_start() {
  const Context& context = Context::current();
  context.synchronize();
  started_.first_step = seconds_since_process_start();
  if (metrics_ && config_.train.log_every > 0) {
    metrics_->write_first_step(
        {state_.iteration, started_.first_step, device_name(), parameter_count(config_.model)});
  }
  stop_clock();
  Allocator& allocator = *context.allocator();
  peak_bytes_ = allocator.stats().peak_allocated;
  started_.peak_flops = measure_peak_flops(config_.compute.precision, *step_);
  if (context.device().is_cuda() && started_.peak_flops == 0.0) {
    observer_.on_warning("the peak FLOP/s were not measured for lack of memory: no MFU");
  }
  allocator.release_cached();
  allocator.reset_peak();  // the peak of training excludes the measurement
  observer_.on_first_step(started_);
  settle(true);
  readback_.start_clock();
  clock_ = Clock::now();
}

void Trainer::stop_clock() {
  train_seconds_ += std::chrono::duration<double>(Clock::now() - clock_).count();
}

TrainResult Trainer::run(const std::atomic<bool>* stop) {
  try {
    return train(stop);
  } catch (const OutOfMemory& error) {
    const std::string saved = save_after_error();
    end_log_after_error("out of memory");
    try {
      memory_.explain(error, config_, MemoryPass::step, snapshots_);
    } catch (const OutOfMemory& explained) {
      throw OutOfMemory(cat(explained.what(), saved.empty() ? "" : "\n", saved));
    }
  } catch (const std::bad_alloc&) {
    const std::string saved = save_after_error();
    end_log_after_error("out of memory");
    throw OutOfMemory(cat(machine_memory_report(config_, MemoryPass::step), "\n", saved));
  } catch (const CommunicationError& error) {
    const std::string saved = saved_after(error);
    if (saved.empty()) throw;
    throw CommunicationError(cat(error.what(), "\n", saved));
  } catch (const std::exception& error) {
    const std::string saved = saved_after(error);
    if (saved.empty()) throw;
    fail(cat(error.what(), "\n", saved));
  }
}

std::string Trainer::saved_after(const std::exception& error) {
  std::string saved = save_after_error();
  end_log_after_error(first_line(error.what()));
  return saved;
}

// Saves the last whole step when training ends with an error. Returns a sentence about it; empty
// when there is nothing to save.
std::string Trainer::save_after_error() {
  if (saving_ || !team_.leads()) return "";  // the save was the error, or it came after one
  if (shards_) return "";                    // the other ranks may be gone with their share
  std::string step = "the last step";
  try {
    team_.check();
  } catch (const CommunicationError&) {  // on GPUs: an incomplete sum may have reached the weights
    return "";
  }
  try {
    report_rest();
    if (state_.iteration == 0 || saved_step_ == state_.iteration || optimizer_->torn()) return "";
    step = cat("step ", state_.iteration);
    write_checkpoint("", RankTeam(nullptr));
    return cat("The weights of ", step, " are saved; continue with --resume ",
               shell_word(folder_->path().string()));
  } catch (const std::exception& error) {
    return cat("The weights of ", step, " could not be saved: ", error.what());
  }
}

// The rows of the steps that are about to be saved. The error may have been that of a row.
void Trainer::report_rest() {
  const auto attempt = [](const auto& call) {
    try {
      call();
    } catch (const std::exception&) {  // the first error is the one to tell
    }
  };
  if (unwritten_ && metrics_) attempt([this] { metrics_->write(*unwritten_); });
  while (readback_.pending() > 0) {
    const StepResult result = *readback_.fetch();
    take_counters(result);
    if (result.step <= state_.iteration) attempt([&] { report(result); });
  }
}

void Trainer::end_log_after_error(const std::string& how) {
  try {
    end_log(how);
  } catch (const std::exception&) {  // the disk may have failed; report the first error
  }
}

TrainResult Trainer::train(const std::atomic<bool>* stop) {
  stop_ = stop;
  bool interrupted = false;
  clock_ = Clock::now();
  readback_.start_clock();
  try {
    if (state_.iteration > 0) catch_up();
    while (state_.iteration < config_.train.steps && !interrupted) {
      interrupted = !train_step();
      if (interrupted) break;
      if (started_.first_step == 0.0) finish_start();
      settle(false);
      at_intervals();
      interrupted = stopping() && state_.iteration < config_.train.steps;
    }
  } catch (const Stopped&) {
    interrupted = true;
    clock_ = Clock::now();  // which had stopped
  }
  settle(true);
  stop_clock();
  if (saved_step_ != state_.iteration) save();
  end_log(interrupted ? "stopped" : "done");
  return {folder_->path(),
          state_.iteration,
          interrupted,
          train_seconds_,
          state_.best_loss,
          state_.best_iteration,
          data_.tokenizer.tokenizer != nullptr};
}

void Trainer::end_log(const std::string& how) {
  if (metrics_ && !ended_) metrics_->write_end(state_.iteration, how);
  ended_ = true;
}

// Results come one step late, so that the device never waits for the host. `all` waits for all.
void Trainer::settle(bool all) {
  while (readback_.pending() > (all ? 0 : 1)) {
    const StepResult result = *readback_.fetch();
    team_.check();
    ranks_stop_ = ranks_stop_ || result.stop;
    take_counters(result);
    if (!result.state.finite) handle_nonfinite(result);
    report(result);
  }
}

// After a step that is not finite the device keeps the state before it, unless the run skips such
// steps.
void Trainer::take_counters(const StepResult& result) {
  state_.step = result.state.step;
  state_.skipped = result.state.skipped;
  if (result.state.finite || config_.train.on_nonfinite == OnNonfinite::skip) return;
  while (readback_.pending() > 0) readback_.fetch();
  state_.iteration = result.step - 1;
  state_.skipped -= 1;
}

void Trainer::report(const StepResult& result) {
  unreported_ms_ += result.ms;
  unreported_steps_ += 1;
  observer_.on_progress(result.step, result.loss);
  const int64_t every = config_.train.log_every;
  if (every == 0 || (result.step % every != 0 && result.step != config_.train.steps)) return;
  const double per_step = 1e-3 * unreported_ms_ / static_cast<double>(unreported_steps_);
  StepMetrics m;
  m.step = result.step;
  m.loss = result.loss;
  m.z_loss = result.z_loss;
  m.grad_norm = result.state.norm;
  m.lr = result.state.lr;
  m.ms = 1e3 * per_step;
  m.tokens_per_s = static_cast<double>(windows_a_step() * config_.model.context) / per_step;
  const double flops = flops_per_token(config_.model, config_.model.context) * m.tokens_per_s;
  const double peak = started_.peak_flops * static_cast<double>(team_.count());
  m.mfu = peak > 0.0 ? flops / peak : 0.0;
  const Context& context = Context::current();
  m.memory_bytes = std::max(peak_bytes_, context.allocator()->stats().peak_allocated);
  m.skipped = result.state.skipped;
  m.tokens = static_cast<int64_t>(sampler_after(result.step).draw) * config_.model.context;
  m.time = unix_time();
  unreported_ms_ = 0.0;
  unreported_steps_ = 0;
  unwritten_ = m;
  if (metrics_) metrics_->write(m);
  unwritten_.reset();
  observer_.on_step(m);
}

// Several ranks stop after the same step: once all know that one was asked to stop.
bool Trainer::stopping() const {
  return team_.is_one() ? stop_ != nullptr && *stop_ : ranks_stop_;
}

bool Trainer::due(int64_t every) const {
  return every > 0 && (state_.iteration % every == 0 || state_.iteration == config_.train.steps);
}

}  // namespace quern
