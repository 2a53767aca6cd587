// quern import: a Hugging Face folder as a run folder.
#include <fmt/format.h>

#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "model/model_cost.h"
#include "run/hf_model.h"

namespace quern {

namespace {

int run_import(const Arguments& args) {
  const ParsedArgs parsed =
      parse_command(kImportCommand, args, "expected one Hugging Face folder", 1, 1);
  const std::string out = parsed.extra.at("out");
  if (out.empty()) throw UsageError(fmt::format("import: no --out RUN\n{}", kImportCommand.usage));
  const bool without = parsed.extra_given.contains("tokenizer");
  if (without && parsed.extra.at("tokenizer") != "none") {
    throw UsageError(
        fmt::format("import: --tokenizer is {}, expected none", parsed.extra.at("tokenizer")));
  }
  const ImportedModel imported = import_model(parsed.positional[0], out, !without);
  fmt::print("{}: {:.2f} M parameters in {:.1f} MiB, context {}, tokenizer: {}\n", out,
             static_cast<double>(parameter_count(imported.model)) / 1e6,
             static_cast<double>(imported.bytes) / (1 << 20), imported.model.context,
             imported.tokenizer.empty() ? "none" : imported.tokenizer);
  return 0;
}

}  // namespace

const Command kImportCommand{
    "import",
    "read a Hugging Face folder into a run folder",
    R"(Usage: quern import FOLDER --out RUN [--tokenizer none]

Reads a Hugging Face model (config.json and safetensors of Llama, Mistral
without sliding window, Qwen2.5, Qwen3 or GPT-2) and writes it as a new run
folder for generate, eval, export and `train --from`. The weights keep their
dtype. A model or a tokenizer that Quern cannot compute exactly is refused with
the reason; docs/models.md lists what is supported.
)",
    run_import,
    {{"out", "the new run folder", ""}, {"tokenizer", "none: import without it", ""}},
    {},
    {"convert", "load", "download", "pull", "hf"}};

}  // namespace quern
