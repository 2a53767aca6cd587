#include "bench/decode.h"

#include <algorithm>
#include <chrono>

#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "model/model_cost.h"
#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr int64_t kWarmup = 9;       // tokens, the last one by time_ahead
constexpr int64_t kMostWaited = 64;  // tokens of the part where the host waits for each token
constexpr uint64_t kSeed = 1;

// Starts every row with a prompt of its own.
void start_rows(Decoder& decoder, const ModelConfig& config, const DecodeBenchOptions& options) {
  for (int64_t b = 0; b < decoder.batch(); ++b) {
    kernels::SampleOptions sample;
    sample.temperature = static_cast<float>(options.temperature);
    sample.seed = static_cast<uint64_t>(b);
    decoder.start(b,
                  random_integers({options.prompt}, static_cast<int32_t>(config.vocab_size))
                      .to_vector<int32_t>(),
                  sample);
  }
}

// Milliseconds of each token while the host runs one step behind the device. One more token, not
// measured, comes first.
std::vector<double> time_ahead(Decoder& decoder, int64_t tokens) {
  Timeline timeline(static_cast<size_t>(tokens) + 1);
  decoder.step();
  timeline.mark();
  for (int64_t i = 0; i < tokens; ++i) {
    decoder.step();
    timeline.mark();
    decoder.fetch();
  }
  decoder.fetch();
  return timeline.intervals();
}

// The same while the host waits for every token before it requests the next.
std::vector<double> time_waited(Decoder& decoder, int64_t tokens) {
  std::vector<double> ms;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto start = std::chrono::steady_clock::now();
    decoder.step();
    decoder.fetch();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  return ms;
}

double median_seconds(const std::function<void()>& work) {
  const auto round = [&](const Mark& mark) {
    work();
    mark();
  };
  return summarize(time_rounds(3, 12, 1, round)).median / 1e3;
}

}  // namespace

double DecodeBenchRow::tokens_per_second() const {
  return step.median > 0.0 ? static_cast<double>(batch) / step.median * 1e3 : 0.0;
}

double DecodeBenchRow::weights_ms() const {
  return static_cast<double>(weight_bytes) / read_tb_per_second / 1e9;
}

int64_t decode_weight_bytes(const ModelConfig& config, int64_t element) {
  int64_t bytes = 0;
  const ParameterTable table = parameter_table(config);
  for (const ParameterEntry& entry : table.entries()) {
    if (!table.is_lookup(entry)) bytes += entry.numel() * (entry.fp32 ? 4 : element);
  }
  return bytes;
}

double measure_read(int64_t bytes) {
  const NoGrad no_grad;
  const int64_t count = bytes / 4;
  const Tensor x = normal({count}, 0.0, 1.0), y = Tensor::empty({count}, DType::f32);
  const double read = 4.0 * static_cast<double>(count) / median_seconds([&] { sum(x); });
  const double copied = 8.0 * static_cast<double>(count) / median_seconds([&] { copy(y, x); });
  return std::max(read, copied);
}

DecodeBenchRow bench_decode(const std::string& size, const ModelConfig& config,
                            const ModelOptions& compute, Decoder::Way way,
                            const DecodeBenchOptions& options) {
  const int64_t length = options.prompt + kWarmup + options.tokens;
  if (length > config.context) {
    throw UsageError(cat("--ctx is ", config.context, ", expected at least ", length,
                         ": the prompt, ", kWarmup, " tokens of warm-up and the measured ones"));
  }
  if (compute.precision == Precision::fp8) {
    throw UsageError("--precision is fp8, under which tokens are generated in BF16: measure bf16");
  }
  const MatmulMathScope math(compute.precision);
  DecodeBenchRow row;
  row.size = size;
  row.way = way;
  row.precision = compute.precision;
  row.batch = options.batch;
  row.prompt = options.prompt;
  row.vocab_size = config.vocab_size;
  const int64_t element = has_bf16_activations(compute.precision) ? 2 : 4;
  row.weight_bytes = decode_weight_bytes(config, element);
  row.cache_bytes = 2 * config.layers * config.kv_width() * element * options.batch *
                    (options.prompt + options.tokens / 2);
  row.out_of_memory = out_of_memory_in([&] {
    TransformerLM model(config, compute);
    ParameterArena arena(model, {compute.precision, false, kSeed});
    Decoder decoder(model, options.batch, length, way);
    start_rows(decoder, config, options);
    time_waited(decoder, kWarmup - 1);
    row.step = summarize(time_ahead(decoder, options.tokens));
    start_rows(decoder, config, options);
    row.waited_ms = summarize(time_waited(decoder, std::min(kMostWaited, options.tokens))).median;
  });
  return row;
}

TableRow table_row(const DecodeBenchRow& row) {
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  const auto detail = [](Column column) {
    column.rank = 1;
    return column;
  };
  return {{{{"size", "size", 0, 8, Align::left}, row.size},
           {{"precision", "precision", 0, 9, Align::left}, name_of(row.precision)},
           {{"way", "way", 0, 9, Align::left}, name_of(row.way)},
           {{"vocab", "vocab_size", 0, 6}, row.vocab_size},
           {{"batch", "batch", 0, 5}, row.batch},
           {{"prompt", "prompt", 0, 6}, row.prompt}},
          {{{"ms", "ms", 4, 8}, row.step.median},
           {{"std", "std_ms", 4, 7}, row.step.std},
           {{"waited ms", "waited_ms", 4, 9}, row.waited_ms},
           {{"tokens/s", "tokens_per_second", 0, 8}, row.tokens_per_second()},
           {detail({"GB weights", "weight_gb", 3, 10}), gigabytes(row.weight_bytes)},
           {detail({"GB cache", "cache_gb", 4, 8}), gigabytes(row.cache_bytes)},
           {detail({"read TB/s", "read_tb_per_second", 3, 9}), row.read_tb_per_second},
           {{"times the read", "times_read", 2, 14}, row.step.median / row.weights_ms()}},
          row.out_of_memory};
}

}  // namespace quern
