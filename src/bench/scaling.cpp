#include "bench/scaling.h"

#include <algorithm>
#include <vector>

#include "base/counted.h"
#include "bench/phase_runner.h"
#include "dist/buckets.h"
#include "model/model_cost.h"
#include "optim/muon.h"
#include "train/choose_recompute.h"
#include "train/memory_prediction.h"

namespace quern {

namespace {

// Costs of a collective before its first byte, and of each other rank; assumed.
constexpr double kStartMs = 0.01, kMessageMs = 0.002;
// Time that kernels lose to a collective beside them, as a share of its own: fitted to steps of two
// to eight H200 (docs/scaling.md).
constexpr double kSlowedShare = 0.25;
constexpr double kFloatBytes = 4.0;
constexpr int64_t kGpuBytes = int64_t{80} << 30;  // for recompute = auto

const std::vector<Setting> kSettings{
    {"size", "size", 6},        {"ctx", "ctx", 5},          {"batch", "batch", 5},
    {"precision", "precision"}, {"attention", "attention"}, {"kernels", "kernels"},
    {"residual", "residual"},   {"optimizer", "optimizer"}, {"moments", "moments"},
    {"recompute", "recompute"}, {"parallel", "parallel", 8}};

double milliseconds(double bytes, double gb_s) {
  return bytes / (gb_s * 1e6);
}

// A bucket as the model sees it.
struct Part {
  double elements = 0.0, work = 0.0;  // work: its share of forward and backward
};

// An embedding that is looked up takes no time; the other weights take time by their number.
std::vector<Part> parts_of(const ParameterTable& table) {
  std::vector<Part> parts;
  double all = 0.0;
  for (const Bucket& bucket : make_buckets(table, BucketExchange::overlapped)) {
    Part part{static_cast<double>(bucket.size())};
    for (const ParameterEntry& entry : table.entries()) {
      if (bucket.holds(entry.begin) && !table.is_lookup(entry)) {
        part.work += static_cast<double>(entry.numel());
      }
    }
    all += part.work;
    parts.push_back(part);
  }
  for (Part& part : parts) part.work /= all;
  return parts;
}

// The schedule of a step: collectives follow each other on a stream of their own.
class Traffic {
 public:
  Traffic(ScalingPrediction& step, std::vector<Part> parts)
      : step_(step), parts_(std::move(parts)) {}

  // `gathered`: the sums return to all ranks, after the last micro-batch of ddp.
  void backward(double ms, bool gathered) {
    if (step_.cluster.gpus == 1) return;
    double ready = 0.0, free = 0.0, busy = 0.0;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      ready += ms * part->work;
      const double takes =
          send(part->elements, kFloatBytes) + (gathered ? send(part->elements, kFloatBytes) : 0.0);
      free = std::max(ready, free) + takes;
      busy += takes;
    }
    add(busy, std::max(free - ms, 0.0));
  }

  // What ranks that share out Muon's matrices exchange in BF16: each its share, there and back.
  void matrices(double elements) {
    for (int way = 0; way < 2; ++way) {
      const double takes = send(elements / static_cast<double>(step_.cluster.gpus), 2.0);
      add(takes, takes);
    }
  }

  // Weights of the other ranks: a bucket's forward, or backward, waits for its own.
  void weights(double ms, double width) {
    double reached = 0.0, arrived = 0.0, late = 0.0;
    for (const Part& part : parts_) {
      arrived += send(part.elements, width);
      late = std::max(late, arrived - reached);
      reached += ms * part.work;
    }
    add(arrived, late);
  }

 private:
  // Each rank sends a slice to every other one and receives as much.
  double send(double elements, double width) {
    const Cluster& c = step_.cluster;
    const auto all = static_cast<double>(c.gpus), here = all / static_cast<double>(c.nodes);
    const double slice = elements * width / all;
    step_.sent_gb += slice * (all - 1.0) / 1e9;
    return kStartMs + kMessageMs * (all - 1.0) +
           std::max(milliseconds(slice * (here - 1.0), c.link),
                    milliseconds(slice * (all - here), c.network));
  }
  void add(double busy, double exposed) {
    step_.busy_ms += busy;
    step_.exposed_ms += exposed;
    step_.slowed_ms += kSlowedShare * std::max(busy - exposed, 0.0);
  }

  ScalingPrediction& step_;
  std::vector<Part> parts_;
};

void check_cluster(const Cluster& c) {
  if (c.gpus < 1 || c.nodes < 1 || c.gpus % c.nodes != 0) {
    throw UsageError(
        cat("memory: ", c.gpus, " GPUs on ", c.nodes, " nodes, expected as many on each"));
  }
  if ((c.step_ms > 0.0) == (c.tflops > 0.0)) {
    throw UsageError("memory: expected either the time of a step on one GPU or its TFLOP/s");
  }
  if (!(std::min({c.memory, c.link, c.network}) > 0.0)) {
    throw UsageError("memory: found a rate of 0 or less");
  }
}

}  // namespace

ScalingPrediction predict_scaling(Config config, const Cluster& cluster) {
  check_vocabulary(config);
  check_cluster(cluster);
  config.parallel.ranks = cluster.gpus;
  if (cluster.gpus == 1) config.parallel.parallel = Parallel::none;
  if (config.compute.recompute == Recompute::automatic) {
    config.compute.recompute = decided_recompute(config, hopper_target(), kGpuBytes);
  }
  const bool shared = shares_out(config.parallel.parallel);
  const bool twice = config.parallel.parallel == Parallel::fsdp;  // weights, in each micro-batch
  // Whether a rank's own micro-batches are added up before the exchange (dist/gradient_sum.cpp).
  const bool once =
      !config.compute.deterministic && (!shared || config.parallel.parallel == Parallel::zero1);
  const bool copies = has_bf16_activations(config.compute.precision);
  const ParameterTable table = parameter_table(config.model);
  const auto micro_batches = static_cast<double>(config.train.accumulate);
  const double tokens =
      micro_batches * static_cast<double>(config.train.batch * config.model.context);

  // AdamW reads and writes weights and moments and reads gradients, the norm reads these once more.
  // Muon's products are computing, as if each rank had all of them: an upper bound.
  double optimizer = 0.0;
  if (config.optimizer.kind == OptimizerKind::adamw) {
    const double moments = config.optimizer.moments == MomentType::bf16 ? 8.0 : 16.0;
    const double bytes = 16.0 + moments;
    optimizer = milliseconds(bytes * static_cast<double>(table.trainable()), cluster.memory);
  }
  ScalingPrediction step{config, cluster};
  step.compute_ms = micro_batches * (cluster.step_ms - optimizer);
  if (cluster.tflops > 0.0) {
    const double flops = tokens * flops_per_token(config.model, config.model.context);
    step.compute_ms = flops / (cluster.tflops * 1e9);
  }
  if (step.compute_ms <= 0.0) {
    throw UsageError(cat("memory: a step of ", cluster.step_ms, " ms on one GPU, expected more ",
                         "than the ", optimizer, " ms that its optimizer takes"));
  }
  const double alone = step.compute_ms + optimizer;
  step.optimizer_ms = shared ? optimizer / static_cast<double>(cluster.gpus) : optimizer;

  Traffic traffic(step, parts_of(table));
  const double part_ms = step.compute_ms / micro_batches;
  for (int64_t i = once ? config.train.accumulate : 1; i <= config.train.accumulate; ++i) {
    traffic.backward(part_ms * 2.0 / 3.0, !shared && i == config.train.accumulate);
  }
  const double width = copies ? 2.0 : kFloatBytes;
  for (int64_t i = 0; shared && i < (twice ? config.train.accumulate : 1); ++i) {
    traffic.weights(part_ms / 3.0, width);
    if (twice) traffic.weights(part_ms * 2.0 / 3.0, width);
  }
  if (shared && config.optimizer.kind == OptimizerKind::muon) {
    double hidden = 0.0;
    for (const ParameterEntry& entry : table.entries()) {
      if (entry.group.frozen || !has_momentum(entry)) continue;
      hidden += static_cast<double>(entry.numel());
    }
    traffic.matrices(hidden);
  }
  step.share = alone / step.step_ms();
  step.memory_bytes = predict_peak(config, MemoryPass::step, hopper_target()).total();
  return step;
}

std::string scaling_rows(Table& table, const ScalingPrediction& p, std::set<std::string> varying) {
  varying.insert("parallel");
  const Cluster& c = p.cluster;
  const std::string head =
      cat("predicted: ", shared_settings(kSettings, p.config, varying), "; a GPU sends ", c.link,
          " GB/s within a node and ", c.network, " GB/s between nodes\n\n");
  const auto tokens = static_cast<double>(p.config.train.accumulate * p.config.train.batch *
                                          p.config.model.context * c.gpus);
  return table.add({setting_fields(kSettings, p.config, varying),
                    {{{"GPUs", "gpus", 0, 5}, c.gpus},
                     {{"nodes", "nodes", 0, 5}, c.nodes},
                     {{"MiB a GPU", "mib", 0, 9}, mebibytes(p.memory_bytes)},
                     {{"sent GB", "sent_gb", 2, 7}, p.sent_gb},
                     {{"links ms", "busy_ms", 1, 8}, p.busy_ms},
                     {{"exposed", "exposed_ms", 1, 7}, p.exposed_ms},
                     {{"slowed", "slowed_ms", 1, 6}, p.slowed_ms},
                     {{"optimizer", "optimizer_ms", 1, 9}, p.optimizer_ms},
                     {{"step ms", "step_ms", 1, 7}, p.step_ms()},
                     {{"tokens/s", "tokens_per_second", 0, 10}, 1e3 * tokens / p.step_ms()},
                     {{"share %", "share", 1, 7}, 100.0 * p.share}},
                    {}},
                   head);
}

}  // namespace quern
