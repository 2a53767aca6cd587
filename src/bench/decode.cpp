#include "bench/decode.h"

#include <algorithm>
#include <chrono>

#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "generate/decoder.h"
#include "model/model_cost.h"
#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr int64_t kWarmup = 8;       // tokens
constexpr int64_t kMostWaited = 64;  // tokens of the part where the host waits for each
constexpr uint64_t kSeed = 1;

Decoder::Way parse_way(const std::string& name) {
  if (name == "automatic") return Decoder::Way::automatic;
  if (name == "launched") return Decoder::Way::launched;
  if (name == "composed") return Decoder::Way::composed;
  throw UsageError(cat("--way is ", name, ", expected automatic, launched or composed"));
}

// Every row with a prompt of its own.
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

// Milliseconds of each token, the host a step behind the device.
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

// The same when the host has every token before it asks for the next.
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

template <class Work>
double median_seconds(const Work& work) {
  constexpr size_t kRuns = 12;
  for (int i = 0; i < 3; ++i) work();
  Timeline timeline(kRuns + 1);
  timeline.mark();
  for (size_t i = 0; i < kRuns; ++i) {
    work();
    timeline.mark();
  }
  return summarize(timeline.intervals()).median / 1e3;
}

}  // namespace

double DecodeBenchRow::tokens_per_second() const {
  return step.median > 0.0 ? static_cast<double>(batch) / step.median * 1e3 : 0.0;
}

double DecodeBenchRow::weights_ms() const {
  return static_cast<double>(weight_bytes) / read_tb_per_second / 1e9;
}

std::vector<std::string> decode_ways() {
  return {"automatic", "launched", "composed"};
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
                            const ModelOptions& compute, const std::string& way,
                            const DecodeBenchOptions& options) {
  const int64_t length = options.prompt + kWarmup + options.tokens + 1;
  if (length > config.context) {
    throw UsageError(cat("--ctx is ", config.context, ", expected at least ", length,
                         ": the prompt, ", kWarmup, " tokens of warm-up and the measured ones"));
  }
  const Decoder::Way chosen = parse_way(way);
  const MatmulMathScope math(compute.precision);
  const Context& context = Context::current();
  context.allocator(context.device())->release_cached();
  DecodeBenchRow row;
  row.size = size;
  row.way = way;
  row.precision = compute.precision;
  row.batch = options.batch;
  row.prompt = options.prompt;
  row.vocab_size = config.vocab_size;
  const int64_t element = compute.precision == Precision::bf16 ? 2 : 4;
  row.weight_bytes = decode_weight_bytes(config, element);
  row.cache_bytes = 2 * config.layers * config.kv_width() * element * options.batch *
                    (options.prompt + options.tokens / 2);
  try {
    TransformerLM model(config, compute);
    ParameterArena arena(model, {compute.precision, false, kSeed});
    Decoder decoder(model, options.batch, length, chosen);
    start_rows(decoder, config, options);
    time_waited(decoder, kWarmup);
    row.step = summarize(time_ahead(decoder, options.tokens));
    start_rows(decoder, config, options);
    row.waited_ms = summarize(time_waited(decoder, std::min(kMostWaited, options.tokens))).median;
  } catch (const OutOfMemory& error) {
    row.out_of_memory = error.what();
  }
  return row;
}

std::vector<Column> decode_columns() {
  return {{"", "peer"},
          {"size", "size", 0, 8, Align::left},
          {"precision", "precision", 0, 9, Align::left},
          {"way", "way", 0, 9, Align::left},
          {"vocab", "vocab_size", 0, 6},
          {"batch", "batch", 0, 5},
          {"prompt", "prompt", 0, 6},
          {"ms", "ms", 4, 8},
          {"std", "std_ms", 4, 7},
          {"waited ms", "waited_ms", 4, 9},
          {"tokens/s", "tokens_per_second", 0, 8},
          {"GB weights", "weight_gb", 3, 10},
          {"GB cache", "cache_gb", 4, 8},
          {"read TB/s", "read_tb_per_second", 3, 9},
          {"times the read", "times_read", 2, 14}};
}

std::vector<Cell> decode_cells(const DecodeBenchRow& row, const std::string& peer) {
  std::vector<Cell> cells{peer,      row.size,       std::string(name_of(row.precision)),
                          row.way,   row.vocab_size, row.batch,
                          row.prompt};
  if (!row.out_of_memory.empty()) return cells;
  cells.insert(cells.end(), {row.step.median, row.step.std, row.waited_ms, row.tokens_per_second(),
                             static_cast<double>(row.weight_bytes) / 1e9,
                             static_cast<double>(row.cache_bytes) / 1e9, row.read_tb_per_second,
                             row.step.median / row.weights_ms()});
  return cells;
}

}  // namespace quern
