// quern bench decode: times generation, one token of every row at a time.
#include "bench/decode.h"

#include "bench_commands.h"
#include "tensor/context.h"

namespace quern {

namespace {

BenchJob prepare(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  DecodeBenchOptions options;
  options.batch = parsed.config.train.batch;
  options.prompt = count_of(parsed, "prompt_tokens", 1);
  options.tokens = iterations_of(parsed, "measured", 1);
  options.temperature = parsed.config.sample.temperature;
  return [options, config = parsed.config, way = parsed.extra.at("way")](Table& table) {
    DecodeBenchRow row =
        bench_decode(config.model.size, config.model, config.compute, way, options);
    // The buffer is larger than any cache.
    const bool on_gpu = Context::current().device().is_cuda();
    row.read_tb_per_second = measure_read(on_gpu ? int64_t{1} << 30 : int64_t{1} << 27) / 1e12;
    print_row(table, row);
  };
}

}  // namespace

const Command kBenchDecodeCommand{
    "bench decode",
    "generation of tokens against reading the weights",
    R"(Usage: quern bench decode [--size NAME] [--batch N] [--KEY VALUE ...]

Times the generation of tokens by a model with random weights and compares it
with the time to read its weights once. Lists of size, batch, precision, vocab
and way (--batch 1,8) give one table of all their combinations. A combination
that runs out of memory gives a row and not an error.
)",
    runs_of({kBenchDecodeCommand, prepare, {"size", "vocab", "precision", "batch", "way"}, {}, 1}),
    bench_flags(
        {{"prompt_tokens", "tokens in the cache before the first measured one", "128"},
         {"measured", "tokens measured of each row", "256"},
         {"way",
          "automatic (on a GPU a graph, under bf16 of one kernel for the whole model), launched (a "
          "kernel for each part of a block, one by one) or composed (of the model's own ops)",
          "automatic"}}),
    {"[model]", "[compute]", "batch", "seed", "temperature"}};

}  // namespace quern
