// quern export: writes a model as a Hugging Face folder.
#include <fmt/format.h>

#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/hf_model.h"

namespace quern {

enum class ExportDtype { float32, bfloat16, float16, source };
template <>
inline constexpr std::array kNamesOf<ExportDtype>{"float32", "bfloat16", "float16", "source"};

namespace {

int run_export(const Arguments& args) {
  const ParsedArgs parsed =
      parse_command(kExportCommand, args, "expected a run folder and a new folder", 2, 2);
  ExportOptions options;
  options.latest = parsed.on("latest");
  if (parsed.extra_given.contains("dtype")) {
    const auto dtype = choice_of<ExportDtype>(parsed, "dtype");
    constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};
    options.source_dtype = dtype == ExportDtype::source;
    if (!options.source_dtype) options.dtype = kDtypes[static_cast<size_t>(dtype)];
  }
  options.shard_bytes = 1'000'000 * number_of<int64_t>(parsed, "shard_size", 1, 1'000'000'000);
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
