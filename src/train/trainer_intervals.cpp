// The work between the steps of a training: checkpoints, validation, samples, and the search for a
// non-finite value.
#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/first_line.h"
#include "base/shell_word.h"
#include "data/text_stream.h"
#include "generate/generate.h"
#include "io/append_file.h"
#include "io/atomic_file.h"
#include "run/checkpoint.h"
#include "run/nonfinite.h"
#include "run/weights.h"
#include "tensor/gemm_table.h"
#include "train/trainer.h"

namespace quern {

// Checkpoints, validation and samples, in this order: the checkpoint is complete even if the rest
// fails. The training clock stops meanwhile.
void Trainer::at_intervals() {
  const bool validate = due(config_.train.eval_every) && data_.tokens.validation.size() > 0;
  const bool sample = due(config_.train.sample_every) && data_.tokenizer.tokenizer;
  const bool checkpoint = due(config_.train.checkpoint_every);
  if (!validate && !sample && !checkpoint) return;
  settle(true);
  stop_clock();
  if (checkpoint && saved_step_ != state_.iteration) save();
  if (validate) validate_now();
  if (sample) sample_now();
  readback_.start_clock();
  clock_ = Clock::now();
}

// Work due after the checkpoint's step that the process which saved it did not reach.
void Trainer::catch_up() {
  if (logged_.validation) {
    if (state_.best_iteration != state_.iteration) take_validation(*logged_.validation);
  } else if (due(config_.train.eval_every) && data_.tokens.validation.size() > 0) {
    validate_now();
  }
  if (due(config_.train.sample_every) && data_.tokenizer.tokenizer) sample_now();
  sampled_ = false;
}

void Trainer::validate_now() {
  const Evaluation result = [this] {
    const PoolScope memory = step_->idle_memory();
    return evaluate(
        instance_->model, data_.tokens.validation, config_.train.batch, config_.model.context,
        config_.train.eval_batches, batches_.document_end,
        [this](int64_t done, int64_t windows) {
          observer_.on_validating(done, windows);
          if (stopping()) throw Stopped();
        },
        team_.group(), shards_.get());
  }();
  if (metrics_) metrics_->write_validation(state_.iteration, result.loss);
  observer_.on_validation(state_.iteration, result, result.loss < state_.best_loss);
  take_validation(result.loss);
}

// The best weights need a checkpoint whose state names them as the best.
void Trainer::take_validation(double loss) {
  if (!(loss < state_.best_loss)) return;
  state_.best_loss = loss;
  state_.best_iteration = state_.iteration;
  const bool saved = saved_step_ == state_.iteration;
  if (!saved) save();
  team_.on_leader(
      [&] {
        if (saved) update_train_state(folder_->checkpoints(), current_state());
        mark_best(folder_->checkpoints(), state_.iteration);
      },
      "the mark of the best checkpoint");
}

// The first rank samples; the others wait. Either all ranks begin it or none.
void Trainer::sample_now() {
  if (!team_.is_one() && stopping()) throw Stopped();
  const PoolScope memory = step_->idle_memory();
  const auto write = [this] {
    if (!sampled_) write_sample();
  };
  const std::string lacking =
      with_whole_weights([&] { team_.on_leader(write, "a sample", WorkLength::long_lasting); });
  if (!lacking.empty()) warn_no_sample(lacking);
}

void Trainer::warn_no_sample(const std::string& reason) {
  observer_.on_warning(cat("no sample after step ", state_.iteration, ": ", reason));
}

void Trainer::write_sample() {
  const Tokenizer& tokenizer = *data_.tokenizer.tokenizer;
  std::string text;
  try {
    const std::vector<int32_t> prompt = encode_prompt(tokenizer, unescape(config_.sample.prompt));
    TextStream stream(tokenizer, prompt, split_stop_strings(config_.sample.stop));
    text = tokenizer.decode(prompt);
    generate(instance_->model, prompt, with_end_token(config_.sample, &tokenizer),
             [&](int32_t token) {
               text += stream.push(token);
               return !stream.stopped() && !stopping();
             });
    text += stream.finish();
  } catch (const Error& error) {  // training continues: it may not need what the sample lacked
    return warn_no_sample(first_line(error.what()));
  }
  if (stopping()) throw Stopped();
  folder_->check_there();
  AppendFile out(folder_->samples());
  out.write(sample_record(state_.iteration, text));
  out.sync();
  observer_.on_sample(state_.iteration, text);
}

// Runs `work` where ops can read all weights. When a rank lacks the memory for them, every rank
// returns its message and does not run `work`.
std::string Trainer::with_whole_weights(const std::function<void()>& work) {
  std::string lacking;
  const auto whole = shards_ ? shards_->whole(lacking) : nullptr;
  if (lacking.empty()) work();
  return lacking;
}

TrainState Trainer::current_state() const {
  TrainState state = state_;
  state.sampler = sampler_after(state_.iteration);
  state.model = config_.model;
  state.optimizer = optimizer_->name();
  state.is_text = data_.tokens.is_text || data_.facts.of_bytes();
  state.tokenizer = data_.tokenizer_hash();
  state.gemm_algorithms = gemm_table();
  return state;
}

// A checkpoint with a NaN cannot be resumed, and rotation would remove the last good one for it.
void Trainer::check_state() const {
  std::vector<OptimizerBuffer> buffers = optimizer_->buffers();
  buffers.insert(buffers.begin(), values_of(instance_->arena));
  for (const OptimizerBuffer& buffer : buffers) {
    const std::string bad = find_nonfinite(buffer);
    if (bad.empty()) continue;
    const auto newest = latest_checkpoint(folder_->checkpoints());
    fail(cat(
        "after step ", state_.iteration, ": ", bad,
        ", expected finite numbers; this state is not saved. The newest checkpoint is ",
        newest ? newest->string() : "none", ". Lower lr or clip",
        newest ? cat(" and continue with --resume ", shell_word(folder_->path().string())) : ""));
  }
}

void Trainer::save(const std::string& keep_reason) {
  saving_ = true;
  const PoolScope memory = step_->idle_memory();
  write_checkpoint(keep_reason, team_);
  saving_ = false;
}

// Every rank of `team` calls it.
void Trainer::write_checkpoint(const std::string& keep_reason, const RankTeam& team) {
  team.on_each(
      [&] {
        check_state();
        if (team.leads()) folder_->check_there(), metrics_->sync();
        return std::string();
      },
      "the state to be saved");
  const TrainState state = current_state();
  const auto path = save_train_state(folder_->checkpoints(), instance_->arena, *optimizer_, state,
                                     team, shards_.get());
  saved_step_ = state_.iteration;
  team.on_leader([&] { finish_checkpoint(path, state, keep_reason); }, "the end of a checkpoint",
                 WorkLength::long_lasting);
}

void Trainer::finish_checkpoint(const std::filesystem::path& path, const TrainState& state,
                                const std::string& keep_reason) {
  if (!keep_reason.empty()) mark_kept(folder_->checkpoints(), state_.iteration, keep_reason);
  std::vector<std::string> warnings = remove_later_checkpoints(folder_->checkpoints());
  std::ranges::move(rotate_checkpoints(folder_->checkpoints(), config_.train.keep),
                    std::back_inserter(warnings));
  for (const std::string& what : warnings) observer_.on_warning(what);
  if (!state.gemm_algorithms.empty()) {
    write_file_atomically(folder_->gemm_table(), state.gemm_algorithms);
  }
  observer_.on_checkpoint(state_.iteration, path);
}

// The device does not apply a step whose loss or gradient norm is not finite. `skip` counts it and
// continues. Under `stop` the device keeps the state before that step
// (StepGuard::halt_on_nonfinite): saves it and throws.
void Trainer::handle_nonfinite(const StepResult& result) {
  const std::string what =
      cat("step ", result.step, ": loss ", result.loss, ", gradient norm ", result.state.norm);
  if (config_.train.on_nonfinite == OnNonfinite::skip) {
    observer_.on_warning(cat(what, "; the step was skipped (", result.state.skipped, " so far)"));
    return;
  }
  save("last state before a non-finite loss");
  end_log("a loss or gradient norm that is not finite");
  const std::string origin = nonfinite_origin(result.step);
  fail(cat(what, ". The first non-finite tensor is ", origin, ". The weights of step ",
           state_.iteration, " are saved in ",
           checkpoint_path(folder_->checkpoints(), state_.iteration).string(),
           ", which rotation keeps. Lower lr or clip and continue with --resume ",
           shell_word(folder_->path().string()), ", or set on_nonfinite = skip"));
}

// Repeats the step, each rank its own part: the first rank that finds a tensor names it.
std::string Trainer::nonfinite_origin(int64_t bad_step) {
  const PoolScope memory = step_->idle_memory();
  const std::string too_little = "unknown: too little memory to repeat the step";
  const auto search = [&] {
    try {
      return trace_nonfinite(bad_step);
    } catch (const OutOfMemory&) {  // checking every output needs more memory than a step
      return too_little;
    }
  };
  std::vector<std::string> found(1, too_little);
  with_whole_weights([&] {
    found = team_.on_each(search, "the search for a non-finite tensor", WorkLength::long_lasting);
  });
  std::string origin = "not found again when the step is repeated";
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank] == too_little) origin = too_little;
    if (found[rank].empty() || found[rank] == too_little) continue;
    return team_.is_one() ? found[rank] : cat(found[rank], " on rank ", rank);
  }
  return origin;
}

std::string Trainer::trace_nonfinite(int64_t bad_step) {
  feed_from(bad_step - 1);
  instance_->arena.zero_grad();
  return find_nonfinite(instance_->arena, [this] {
    for (int64_t i = 0; i < config_.train.accumulate; ++i) {
      const DeviceBatch batch = feeder_->next();
      forward_backward(*instance_, batch.tokens, batch.targets, config_.train.accumulate);
    }
  });
}

}  // namespace quern
