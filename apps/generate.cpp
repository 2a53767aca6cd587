// quern generate: text from a trained model.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "commands.h"
#include "data/byte_tokenizer.h"
#include "train/config_parse.h"
#include "train/config_print.h"
#include "train/generate.h"
#include "train/memory_report.h"
#include "train/saved_model.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern generate RUN [--prompt TEXT] [--tokens N] [--temperature X] [--KEY VALUE ...]\n\n"
    "Continues a prompt. RUN is a run folder (its best checkpoint is used) or one of its "
    "checkpoints.\n";

const std::vector<ExtraFlag> kFlags = {
    {"latest", "use the newest checkpoint of the run, not the best", "false", true},
    {"prompt_ids",
     "the prompt as token ids, separated by commas: for models that were not trained on text", "",
     false},
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    size_t used = 0;
    int32_t id = 0;
    try {
      id = std::stoi(item, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != item.size()) {
      throw UsageError(fmt::format("--prompt_ids: found '{}', expected a token id", item));
    }
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

}  // namespace

int run_generate(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.help) {
    fmt::print("{}\n{}", kUsage, config_help(kFlags));
    return 0;
  }
  if (parsed.positional.size() != 1)
    throw UsageError(fmt::format("generate: expected one run folder\n{}", kUsage));
  Config config = parsed.config;
  config.train.batch = 1;
  const auto context = make_context(config.compute, 0);
  const ContextScope scope(*context);
  MemoryWatch memory;
  const SavedModel saved = memory.run(config, MemoryPass::forward, ".", [&] {
    return load_saved_model(parsed.positional[0], parsed.extra.at("latest") == "true",
                            config.compute);
  });
  static_cast<ModelConfig&>(config.model) = saved.state.model;
  const bool text_model = saved.state.is_text;
  const std::string& ids = parsed.extra.at("prompt_ids");
  QUERN_CHECK(text_model || !ids.empty(), "generate: ", saved.checkpoint.string(),
              " was trained on token files; give --prompt_ids 1,2,3 instead of a text prompt");
  const bool as_text = text_model && ids.empty();
  const std::vector<int32_t> prompt =
      ids.empty() ? encode_bytes(config.sample.prompt) : parse_ids(ids);
  if (as_text) fmt::print("{}", config.sample.prompt);

  const auto start = std::chrono::steady_clock::now();
  const auto show = [&](int32_t token) {
    if (as_text) {
      fmt::print("{}", decode_bytes(std::vector{token}));
    } else {
      fmt::print("{} ", token);
    }
    std::fflush(stdout);
    return true;
  };
  const size_t made = memory.run(config, MemoryPass::forward, ".", [&] {
    return generate(saved.instance->model, prompt, config.sample, show).size();
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print("\n");
  std::fflush(stdout);  // before the line on stderr
  fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} tokens/s, from {}\n", made, elapsed.count(),
             static_cast<double>(made) / elapsed.count(), saved.checkpoint.string());
  return 0;
}

}  // namespace quern
