// quern export: a trained model as a Hugging Face folder.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "data/byte_tokenizer.h"
#include "io/huggingface.h"
#include "train/config_parse.h"
#include "train/config_print.h"
#include "train/saved_model.h"
#include "train/weights.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern export RUN FOLDER [--latest]\n\n"
    "Writes the best checkpoint of RUN (or the checkpoint that RUN names) as a Hugging Face Llama\n"
    "folder: config.json, generation_config.json and model.safetensors, the weights in float32.\n"
    "FOLDER must not exist. There is no tokenizer to write: a text model's tokens are bytes, and\n"
    "256 ends a text.\n";

const std::vector<ExtraFlag> kFlags = {
    {"latest", "use the newest checkpoint of the run, not the best", "false", true},
};

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
        fmt::format("export: found --{}, expected no flag but --latest", *parsed.given.begin()));
  const std::filesystem::path folder = parsed.positional[1];
  QUERN_CHECK(!std::filesystem::exists(folder), "export: ", folder.string(),
              " exists already, expected a new folder");
  ComputeSection compute;
  compute.device = DeviceChoice::cpu;
  compute.attention = AttentionKind::naive;  // nothing is computed, so that any head_dim will do
  const auto context = make_context(compute, 0);
  const ContextScope scope(*context);
  const SavedModel saved =
      load_saved_model(parsed.positional[0], parsed.extra.at("latest") == "true", compute);
  const auto end_token =
      saved.state.is_text ? std::optional<int64_t>(kEndOfText) : std::optional<int64_t>();
  export_hf(folder, saved.state.model, weights_of(saved.instance->arena).views, end_token);
  fmt::print("{}: the model of {}\n", folder.string(), saved.checkpoint.string());
  return 0;
}

}  // namespace quern
