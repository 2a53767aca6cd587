// A tiny training run for whole-program tests: a learnable corpus, a model of a few thousand
// parameters.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace quern::testing_support {

// A text of `bytes` bytes: pseudo-random words of a small vocabulary, the same each time.
void write_corpus(const std::filesystem::path& path, int64_t bytes);

// 2 layers, d 64, 4 heads of 16, vocab 300, ctx 48: a model alone, without a corpus.
ModelConfig tiny_model();

// 2 layers, d 32, 4 heads of 8, ctx 32, batch 4, on the corpus at `text`, into `out`.
Config tiny_config(const std::filesystem::path& text, const std::filesystem::path& out);

struct Recorded : TrainObserver {
  std::vector<StepMetrics> steps;
  std::vector<double> validations;
  std::vector<std::string> samples, warnings;
  void on_step(const StepMetrics& metrics) override { steps.push_back(metrics); }
  void on_validation(int64_t, const Evaluation& e, bool) override { validations.push_back(e.loss); }
  void on_sample(int64_t, const std::string& text) override { samples.push_back(text); }
  void on_warning(const std::string& text) override { warnings.push_back(text); }
  std::vector<double> losses() const;
};

// Runs a training in its own Context.
TrainResult train(const Config& config, Recorded& recorded,
                  const std::atomic<bool>* stop = nullptr);

// The same training, with its state and the inputs of recomputed blocks in the host's memory: one
// configuration for each Offload that its precision allows.
std::vector<Config> offloaded(const Config& config);

// Trains 100 steps at once and 50 + 50 in two runs, and expects the same losses, rates, weights and
// moments, bit for bit.
void expect_resume_is_exact(Config config, const std::filesystem::path& folder);

// Trains 4 steps with validations, samples and checkpoints, with the first allocation of `device`
// failing, then with the one `stride` later, until none fails. Expects each time no memory in use
// afterwards, and either a warning that a sample was left out, or an OutOfMemory and a resume with
// the weights and samples of an undisturbed run.
void expect_survives_failed_allocations(Config config, Device device,
                                        const std::filesystem::path& folder, int64_t stride);

}  // namespace quern::testing_support
