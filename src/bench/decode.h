// `quern bench decode`: the time of a generated token against the time of reading the weights once,
// the lower bound for a batch of one.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "bench/harness.h"
#include "bench/table.h"
#include "generate/decoder.h"
#include "model/model_config.h"

namespace quern {

struct DecodeBenchOptions {
  int64_t batch = 1;
  int64_t prompt = 128;  // tokens in every row's cache before the first measured one
  int64_t tokens = 256;  // measured tokens
  double temperature = 1.0;
};

template <>
inline constexpr std::array kNamesOf<Decoder::Way>{"automatic", "composed", "launched"};

struct DecodeBenchRow {
  std::string size;
  Decoder::Way way = Decoder::Way::automatic;
  Precision precision = Precision::fp32;
  int64_t batch = 0, prompt = 0, vocab_size = 0;
  Summary step;              // milliseconds a token of each row, the host one step behind
  double waited_ms = 0.0;    // the median when the host waits for every token
  int64_t weight_bytes = 0;  // read once by a step: all weights but an untied embedding
  int64_t cache_bytes = 0;   // keys and values read per token, at the mean length
  // The rate of reading a large buffer in this run; NaN: not measured.
  double read_tb_per_second = std::numeric_limits<double>::quiet_NaN();
  std::string out_of_memory;  // the allocator's message; then there are no figures

  double tokens_per_second() const;
  double weights_ms() const;  // the time of reading the weights once
};

// Bytes of weights read by a step, `element` bytes each; norms are FP32.
int64_t decode_weight_bytes(const ModelConfig& config, int64_t element);

// Bytes a second when reading a buffer of at least `bytes` once, on the current Context's device.
double measure_read(int64_t bytes);

// Uses random weights and prompts on the current Context's device. Throws UsageError when prompt
// and tokens exceed the context, and for precision fp8.
DecodeBenchRow bench_decode(const std::string& size, const ModelConfig& config,
                            const ModelOptions& compute, Decoder::Way way,
                            const DecodeBenchOptions& options);

TableRow table_row(const DecodeBenchRow& row);

}  // namespace quern
