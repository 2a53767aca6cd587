// quern export: a model as a Hugging Face folder.
#include <fmt/format.h>

#include <charconv>

#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/hf_model.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern export RUN FOLDER [--latest] [--dtype TYPE] [--shard-size MB]\n\n"
    "Writes the best checkpoint of RUN (or the checkpoint that RUN names) as a Hugging Face\n"
    "folder that transformers opens: config.json, generation_config.json, model.safetensors (or\n"
    "several shards and their index) and the tokenizer of the run; of a model of bytes, one whose\n"
    "tokens are the bytes' values and 256, which ends a text. FOLDER must not exist.\n\n"
    "  --latest            use the newest checkpoint of the run, not the best\n"
    "  --dtype TYPE        float32, bfloat16, float16, or source: that of the folder which the\n"
    "                      model came from; without it as in the checkpoint, which is float32\n"
    "                      after training, and after `quern import` what it was\n"
    "  --shard-size MB     most megabytes (of 10^6 bytes) in a file; default 5000\n";

const std::vector<ExtraFlag> kFlags = {
    {"latest", "", "false", true}, {"dtype", "", "", false}, {"shard_size", "", "5000", false}};

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
    throw UsageError(fmt::format(
        "export: --dtype is {}, expected one of float32, bfloat16, float16, source", name));
  }
}

int64_t shard_bytes(const std::string& text) {
  constexpr int64_t kMost = 1'000'000'000;
  int64_t megabytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), megabytes);
  if (error != std::errc() || end != text.data() + text.size() || megabytes < 1 ||
      megabytes > kMost) {
    throw UsageError(
        fmt::format("export: --shard-size is {}, expected an integer from 1 to {}", text, kMost));
  }
  return megabytes * 1'000'000;
}

}  // namespace

int run_export(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.help) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (parsed.positional.size() != 2)
    throw UsageError(fmt::format("export: expected a run folder and a new folder\n{}", kUsage));
  if (!parsed.given.empty())
    throw UsageError(
        fmt::format("export: found --{}, expected no flag but --latest, --dtype and --shard-size",
                    *parsed.given.begin()));
  ExportOptions options;
  options.latest = parsed.extra.at("latest") == "true";
  set_dtype(options, parsed.extra.at("dtype"));
  options.shard_bytes = shard_bytes(parsed.extra.at("shard_size"));
  const auto checkpoint = export_model(parsed.positional[0], parsed.positional[1], options);
  fmt::print("{}: the model of {}\n", parsed.positional[1], checkpoint.string());
  return 0;
}

}  // namespace quern
