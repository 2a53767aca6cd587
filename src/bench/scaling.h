// `quern memory --gpus N --nodes M`: predicts time and memory of a training step on absent GPUs
// from a model of their computing and communication. docs/scaling.md derives it and compares it
// with measurements.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "bench/table.h"

namespace quern {

// Rates are in GB/s (1e9 bytes) of one GPU, each direction. `link` was measured between two H100 of
// one host. `memory`, 93 % of a copy there, and `network`, nine tenths of 400 Gbit/s, are assumed.
struct Cluster {
  int64_t gpus = 1, nodes = 1;  // gpus: on all nodes together
  // Set exactly one: the measured step of one micro-batch on one GPU, or the rate of its forward
  // and backward.
  double step_ms = 0.0, tflops = 0.0;
  double memory = 2800.0;  // the optimizer's rate
  double link = 245.0;     // between GPUs of a node
  double network = 45.0;   // between nodes
};

struct ScalingPrediction {
  Config config;  // with ranks and strategy
  Cluster cluster;
  double compute_ms = 0.0;    // forward and backward of all micro-batches
  double optimizer_ms = 0.0;  // of a rank's update
  double sent_gb = 0.0;       // by a rank in a step
  double busy_ms = 0.0;       // of its links
  double slowed_ms = 0.0;     // lost by kernels to concurrent collectives
  double exposed_ms = 0.0;    // collectives without overlap
  int64_t memory_bytes = 0;   // the peak of a rank

  double step_ms() const { return compute_ms + optimizer_ms + slowed_ms + exposed_ms; }
  double share = 0.0;  // of the throughput of `gpus` single GPUs
};

// config.parallel.parallel is ddp, zero1, zero2 or fsdp. Throws UsageError on an invalid `cluster`.
ScalingPrediction predict_scaling(Config config, const Cluster& cluster);

// A row. In tables for people, settings outside `varying` stand above, but for the strategy.
std::string scaling_rows(Table& table, const ScalingPrediction& prediction,
                         std::set<std::string> varying);

}  // namespace quern
