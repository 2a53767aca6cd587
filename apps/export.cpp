// quern export: writes a model as a Hugging Face folder.
#include <fmt/format.h>

#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/hf_model.h"

namespace quern {

namespace {

void set_dtype(ExportOptions& options, const std::string& name) {
  if (name.empty()) return;
  if (name == "source") {
    options.source_dtype = true;
  } else if (name == "float32") {
    options.dtype = DType::f32;
  } else if (name == "bfloat16") {
    options.dtype = DType::bf16;
  } else if (name == "float16") {
    options.dtype = DType::f16;
  } else {
    throw UsageError(cat("export: --dtype is ", name,
                         ", expected one of float32, bfloat16, float16, source",
                         did_you_mean(name, {"float32", "bfloat16", "float16", "source"})));
  }
}

int64_t shard_bytes(const std::string& text) {
  constexpr int64_t kMost = 1'000'000'000;
  const std::optional<int64_t> megabytes = number_in<int64_t>(text, 1, kMost);
  if (megabytes) return *megabytes * 1'000'000;
  throw UsageError(
      fmt::format("export: --shard-size is {}, expected an integer from 1 to {}", text, kMost));
}

int run_export(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kExportCommand.flags);
  if (parsed.positional.size() != 2)
    throw UsageError(
        fmt::format("export: expected a run folder and a new folder\n{}", kExportCommand.usage));
  check_keys(parsed.given, kExportCommand);
  ExportOptions options;
  options.latest = parsed.extra.at("latest") == "true";
  set_dtype(options, parsed.extra.at("dtype"));
  options.shard_bytes = shard_bytes(parsed.extra.at("shard_size"));
  const auto checkpoint = export_model(parsed.positional[0], parsed.positional[1], options);
  fmt::print("{}: the model of {}\n", parsed.positional[1], checkpoint.string());
  return 0;
}

}  // namespace

const Command kExportCommand{
    "export",
    "write a trained model as a Hugging Face folder",
    R"(Usage: quern export RUN FOLDER [--latest] [--dtype TYPE] [--shard-size MB]

Writes the best checkpoint of RUN (or the checkpoint that RUN names) as a
Hugging Face folder that transformers opens: config.json,
generation_config.json, model.safetensors (or several shards and their index)
and the run's tokenizer. A byte-level model's tokens are the byte values and
256, the end token. FOLDER must not exist.
)",
    run_export,
    {{"latest", "use the newest checkpoint of the run, not the best", "false", true},
     {"dtype",
      "float32, bfloat16, float16, or source: that of the imported folder; by default as in the "
      "checkpoint: float32 after training, the imported dtype after `quern import`",
      ""},
     {"shard_size", "largest file, in megabytes of 10^6 bytes", "5000"}},
    {},
    {"save", "convert_to_hf", "gguf"}};

}  // namespace quern
