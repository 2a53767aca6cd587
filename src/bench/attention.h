// `quern bench attention`: attention alone, forward and backward, over the grids of
// benchmarks/peers/torch_attention.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "bench/harness.h"
#include "bench/table.h"
#include "nn/options.h"

namespace quern {

// model: 16 Ki tokens a launch, batch x heads x 2048 wide, causal and not; D 96 has 21 heads, D 80
// the 32 of the 2.7B model. course: batch 8, one head, not causal.
enum class AttentionGrid { model, course };

// naive: scores in memory, launched op by op. naive_graph: the same, captured as two CUDA graphs,
// one for each direction. flash: tiled. portable: flash by the kernels that run on every GPU from
// compute capability 8.0 on.
enum class AttentionVariant { naive, naive_graph, flash, portable };

template <>
inline constexpr std::array kNamesOf<AttentionGrid>{"model", "course"};
template <>
inline constexpr std::array kNamesOf<AttentionVariant>{"naive", "naive_graph", "flash", "portable"};

struct AttentionCase {
  int64_t B = 0, H = 0, T = 0, D = 0;
  bool causal = false;
  int64_t Hk = H;  // key and value heads, a divisor of H

  double forward_flops() const;  // 4 B H T^2 D, half of it when causal
  double backward_flops() const { return 2.5 * forward_flops(); }

  friend bool operator==(const AttentionCase&, const AttentionCase&) = default;
};

struct AttentionBenchOptions {
  std::vector<AttentionGrid> grids{AttentionGrid::model, AttentionGrid::course};
  std::vector<Precision> precisions{Precision::bf16, Precision::fp32};
  // Empty: all that the device supports, except portable. naive_graph needs a GPU.
  std::vector<AttentionVariant> variants;
  std::vector<int64_t> dims, lengths;  // D and T; empty: the grid's own
  std::vector<AttentionCase> shapes;   // instead of the grids, each with all of `causal`
  std::vector<bool> causal;            // empty: the grid's own; of `shapes`, true and false
  bool small = false;                  // for a CPU: grids with smaller D and T, which take seconds
  int64_t tokens = 16384;              // per launch of the model grid: B = tokens / T, at least 1
  int64_t warmup = 3;                  // unmeasured iterations of each row
  int64_t steps = 20;                  // measured iterations
};

// The shapes of the options' grids, in the peer's order.
std::vector<AttentionCase> attention_cases(const AttentionBenchOptions& options);

struct AttentionRow {
  AttentionVariant variant = AttentionVariant::flash;
  Precision precision = Precision::bf16;  // FP32 tensors also with tf32
  AttentionCase shape;
  Summary forward, backward;  // milliseconds
  // Memory in use between forward and backward, as the peer counts: q, k, v, the output, its
  // gradient, and the other tensors saved by the tape.
  int64_t saved_bytes = 0;
  int64_t peak_bytes = 0;     // peak of a forward and backward, including saved_bytes' tensors
  std::string out_of_memory;  // the allocator's message; then everything above is 0

  double forward_tflops() const;  // TFLOP/s of the median; 0 when out of memory
  double backward_tflops() const;
};

// Runs every case in every precision and variant on the current Context's device. Calls `on_row`
// after each. Out of memory gives a row; other errors end the benchmark. Throws UsageError when
// naive_graph is requested without a GPU, or flash with a D that it does not support.
std::vector<AttentionRow> bench_attention(
    const AttentionBenchOptions& options,
    const std::function<void(const AttentionRow&)>& on_row = {});

// In JSON and CSV the keys are those of torch_attention.py.
TableRow table_row(const AttentionRow& row);

}  // namespace quern
