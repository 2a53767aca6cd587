// The configuration: one struct per section. Keys, ranges, help and file format are in
// config_table.h; reading files and flags is in config_parse.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "data/sampler.h"
#include "data/token_file.h"
#include "dist/parallel.h"
#include "model/model_config.h"
#include "nn/options.h"
#include "optim/optimizer_kind.h"
#include "optim/schedule.h"

namespace quern {

enum class DeviceChoice { automatic, cpu, cuda };
enum class OnNonfinite { stop, skip };
enum class PastContext { stop, slide };
enum class CpuLevel { automatic, avx2, avx512, avx512_bf16, amx };

// [model] The dimensions, and the name of the size they came from. vocab_size 0: from the data.
struct ModelSection : ModelConfig {
  std::string size = "toy";
  std::string from;  // Hugging Face folder, run or checkpoint with the initial weights
  InitScheme init = InitScheme::normal;

  ModelSection() { vocab_size = 0; }
  friend bool operator==(const ModelSection&, const ModelSection&) = default;
};

// [compute]
struct ComputeSection : ModelOptions {
  DeviceChoice device = DeviceChoice::automatic;
  bool graph = true;       // capture the training step as a CUDA graph
  std::string gemm_table;  // written by `quern tune`; empty: the shipped one, if any
  int64_t threads = 0;     // 0: all cores
  CpuLevel cpu_level = CpuLevel::automatic;
  int64_t memory_limit = 0;  // MiB that the device's allocator may hold; 0: no limit

  friend bool operator==(const ComputeSection&, const ComputeSection&) = default;
};

// [data] Paths of a text file, a folder of text files, a token file, or a glob of token files.
struct DataSection {
  std::string train;
  std::string validation;            // empty: a part of train
  double validation_fraction = 0.1;  // the end of train, when validation is empty
  DataFormat format = DataFormat::automatic;
  std::string tokenizer;  // or "none"; empty: that of the token files or model.from, else bytes
  Sampling sampling = Sampling::random;
  bool document_mask = false;  // excludes the first token of each document from the loss

  friend bool operator==(const DataSection&, const DataSection&) = default;
};

// [train] Intervals are in optimizer steps; 0 disables one.
struct TrainSection {
  int64_t steps = 2000;
  int64_t batch = 12;      // sequences a micro-batch
  int64_t accumulate = 1;  // micro-batches a step
  int64_t seed = 1;
  int64_t log_every = 10;
  bool tensorboard = false;  // also writes the metrics as TensorBoard event files
  int64_t eval_every = 250;
  int64_t eval_batches = 0;  // 0: all validation windows
  int64_t sample_every = 500;
  int64_t checkpoint_every = 500;
  int64_t keep = 3;  // newest checkpoints kept, beside the best
  OnNonfinite on_nonfinite = OnNonfinite::stop;

  friend bool operator==(const TrainSection&, const TrainSection&) = default;
};

// [optimizer] The optimizer, clipping and the learning-rate schedule.
struct OptimizerSection {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;             // the peak
  double min_lr = 0.1;          // the last step's rate, as a fraction of lr
  int64_t warmup = 100;         // steps
  double decay_fraction = 0.2;  // wsd: fraction of the steps in the decay
  ScheduleKind schedule = ScheduleKind::cosine;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  MomentType moments = MomentType::fp32;
  double momentum = 0.95;  // Muon's, like the next three
  bool nesterov = true;
  double muon_lr_scale = 1.0;
  MuonAdjust muon_adjust = MuonAdjust::match_rms_adamw;
  double weight_decay = 0.1;  // matrices only
  double clip = 1.0;          // largest gradient norm; 0: no clipping

  friend bool operator==(const OptimizerSection&, const OptimizerSection&) = default;
};

// [parallel] The ranks of a training: one process each.
struct ParallelSection {
  Parallel parallel = Parallel::automatic;
  int64_t ranks = 1;
  int64_t comm_limit = 10;  // seconds until all ranks have ended when one is lost

  friend bool operator==(const ParallelSection&, const ParallelSection&) = default;
};

// [run]
struct RunSection {
  std::string out;     // the run folder, which must not exist; empty: runs/<date>-<time>
  std::string resume;  // the run folder or checkpoint to continue

  friend bool operator==(const RunSection&, const RunSection&) = default;
};

// [sample]
struct SampleSection {
  std::string prompt = "\n";
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the most probable token
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;
  double min_p = 0.0;               // 0: off
  double repetition_penalty = 1.0;  // 1: off
  std::string stop;                 // strings that end the text, separated by |; empty: none
  int64_t stop_token = -1;          // ends the text; -1: the tokenizer's end token; -2: none
  int64_t sample_seed = 1;
  PastContext past_context = PastContext::slide;

  friend bool operator==(const SampleSection&, const SampleSection&) = default;
};

struct Config {
  ModelSection model;
  ComputeSection compute;
  DataSection data;
  TrainSection train;
  OptimizerSection optimizer;
  ParallelSection parallel;
  RunSection run;
  SampleSection sample;

  friend bool operator==(const Config&, const Config&) = default;
};

}  // namespace quern
