// quern generate: generates text from a trained model.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "data/text_stream.h"
#include "generate/generate.h"
#include "io/utf8.h"
#include "run/make_context.h"
#include "run/run_folder.h"
#include "run/saved_model.h"
#include "run/train_state.h"
#include "train/memory_report.h"

namespace quern {

namespace {

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (const std::string& item : split_commas(text)) {
    const size_t begin = std::min(item.find_first_not_of(' '), item.size());  // "1, 2"
    const auto id = parse_number<int32_t>(std::string_view(item).substr(begin));
    if (!id) throw UsageError(fmt::format("--prompt_ids: found '{}', expected a token id", item));
    ids.push_back(*id);
  }
  return ids;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::error_code ignored;
  QUERN_CHECK(in && !std::filesystem::is_directory(path, ignored), "prompts: ", path,
              " cannot be read, expected a file with a prompt on each line");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (lines.empty() && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (line.ends_with('\r')) line.pop_back();
    QUERN_CHECK(!line.empty(), "prompts: ", path, ": line ", lines.size() + 1,
                " is empty, expected a prompt");
    const size_t valid = valid_utf8_prefix(line);
    QUERN_CHECK(valid == line.size(), "prompts: ", path, ": line ", lines.size() + 1, ": byte ",
                valid + 1, fmt::format(" is 0x{:02x}", static_cast<unsigned char>(line[valid])),
                ", expected UTF-8");
    lines.push_back(line);
  }
  QUERN_CHECK(!lines.empty(), "prompts: ", path, " is empty, expected a prompt on each line");
  return lines;
}

// The prompts to continue.
struct Prompts {
  std::vector<std::string> texts;  // empty: the prompts are ids
  std::vector<std::vector<int32_t>> ids;
};

Prompts read_prompts(const ParsedArgs& parsed, const SavedModel& saved) {
  const std::string& file = parsed.extra.at("prompts");
  Prompts prompts;
  if (parsed.extra_given.contains("prompt_ids")) {
    prompts.ids = {parse_ids(parsed.extra.at("prompt_ids"))};
    return prompts;
  }
  QUERN_CHECK(saved.tokenizer, "generate: ", saved.checkpoint.string(),
              " was trained on token files; give --prompt_ids 1,2,3 instead of a text prompt");
  prompts.texts =
      file.empty() ? std::vector{unescape(parsed.config.sample.prompt)} : read_lines(file);
  for (const std::string& text : prompts.texts) {
    prompts.ids.push_back(encode_prompt(*saved.tokenizer, text));
  }
  return prompts;
}

void check_arguments(const ParsedArgs& parsed) {
  if (parsed.positional.size() == 2) {
    throw UsageError(
        fmt::format("generate: found '{0}' after the run folder; did you mean --prompt '{0}'?",
                    parsed.positional[1]));
  }
  if (parsed.positional.size() != 1)
    throw UsageError(fmt::format("generate: expected one run folder\n{}", kGenerateCommand.usage));
  const bool file = parsed.extra_given.contains("prompts");
  const bool ids = parsed.extra_given.contains("prompt_ids");
  if (file + ids + parsed.flags.contains("prompt") > 1)
    throw UsageError("generate: expected one of --prompt, --prompts and --prompt_ids");
}

// Shows a single text while it is generated; several texts when they are done, in prompt order.
class Printer {
 public:
  Printer(const SavedModel& saved, const Prompts& prompts, const SampleSection& options, bool json)
      : prompts_(prompts), json_(json), streamed_(!json && prompts.ids.size() == 1) {
    const std::vector<std::string> stops = split_stop_strings(options.stop);
    const bool as_text = !prompts.texts.empty();
    if (!as_text && !stops.empty())
      throw UsageError("generate: --stop is text, but the prompt is token ids");
    texts_.resize(prompts.ids.size());
    for (size_t i = 0; as_text && i < prompts.ids.size(); ++i) {
      streams_.emplace_back(*saved.tokenizer, prompts.ids[i], stops);
    }
    if (streamed_ && as_text) show(prompts.texts[0]);
  }

  // Adds a token. Returns false when the text has ended.
  bool add(size_t prompt, int32_t token) {
    if (std::ferror(stdout)) return false;  // nothing more can be shown; main reports it
    if (streams_.empty()) {
      add_text(prompt, fmt::format("{} ", token));
      return true;
    }
    add_text(prompt, streams_[prompt].push(token));
    return !streams_[prompt].stopped();
  }

  void finish(const std::vector<Generation>& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!streams_.empty()) add_text(i, streams_[i].finish());
      if (json_) {
        show(json_line(i, results[i]) + "\n");
      } else if (streamed_) {
        show("\n");
      } else {
        show(fmt::format("--- prompt {} of {}\n{}{}\n", i + 1, results.size(), prompts_.texts[i],
                         texts_[i]));
      }
    }
  }

 private:
  void show(const std::string& text) const {
    const std::string shown = terminal_ ? printable_utf8(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }

  void add_text(size_t prompt, const std::string& text) {
    streamed_ ? show(text) : void(texts_[prompt] += text);
  }

  std::string json_line(size_t i, const Generation& result) const {
    nlohmann::ordered_json line;
    if (!prompts_.texts.empty()) {
      line["prompt"] = prompts_.texts[i];
      line["text"] = texts_[i];
    }
    line["prompt_tokens"] = prompts_.ids[i];
    line["tokens"] = result.tokens;
    line["finish"] = name_of(result.finish);
    return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }

  const Prompts& prompts_;
  bool json_, streamed_;
  bool terminal_ = isatty(STDOUT_FILENO) != 0;
  std::vector<TextStream> streams_;  // empty: tokens are shown as ids
  std::vector<std::string> texts_;   // generated so far, for texts that are not streamed
};

int run_generate(const Arguments& args) {
  const ParsedArgs parsed = parse_unvalidated(args, kGenerateCommand.flags);
  check_arguments(parsed);
  // A file may be that of the training, with all its keys.
  check_keys(parsed.flags, kGenerateCommand, {{"seed", "sample_seed"}});
  Config config = parsed.config;
  if (parsed.extra.at("prompts").empty()) config.train.batch = 1;
  const auto checkpoint = find_checkpoint(parsed.positional[0], !parsed.on("latest"));
  static_cast<ModelConfig&>(config.model) = peek_train_state(checkpoint).model;
  if (!parsed.given.contains("attention")) use_supported_attention(config.model, config.compute);
  validate(config);
  const auto context = make_context(config.compute, 0);
  const ContextScope scope(*context);
  MemoryWatch memory;
  const SavedModel saved = memory.run(config, MemoryPass::forward, ".", [&] {
    return load_saved_model(checkpoint, parsed.on("latest"), config.compute);
  });
  std::set<std::string> dimensions = parsed.given;
  if (!parsed.flags.contains("from")) dimensions.erase("from");  // the training's own
  saved.check_given(parsed.config, dimensions);
  const Prompts prompts = read_prompts(parsed, saved);
  const SampleSection options = with_end_token(config.sample, saved.tokenizer.get());
  check_stop_token(options, saved.state.model.vocab_size);
  for (const std::string& warning : long_prompt_warnings(prompts.ids, saved.state.model.context)) {
    spdlog::warn("{}", warning);
  }
  Printer printer(saved, prompts, options, parsed.on("json"));

  const auto start = std::chrono::steady_clock::now();
  const std::vector<Generation> results = memory.run(config, MemoryPass::forward, ".", [&] {
    return generate_batch(saved.instance->model, prompts.ids, options, config.train.batch,
                          [&](size_t prompt, int32_t token) { return printer.add(prompt, token); });
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  printer.finish(results);
  size_t made = 0;
  for (const Generation& result : results) made += result.tokens.size();
  fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} tokens/s, from {}\n", made, elapsed.count(),
             static_cast<double>(made) / elapsed.count(), saved.checkpoint.string());
  return 0;
}

}  // namespace

const Command kGenerateCommand{
    "generate",
    "continue a prompt with a trained model",
    R"(Usage: quern generate RUN [--prompt TEXT] [--tokens N] [--KEY VALUE ...]
       quern generate RUN --prompts FILE [--batch N] [--json]

Continues a prompt, or each line of a file. RUN is a run folder (its best
checkpoint is used) or one of its checkpoints. The text goes to standard output
as it is generated, the speed to standard error. With several prompts, --batch
of them are generated together, and all texts are printed at the end.
)",
    run_generate,
    {{"latest", "use the newest checkpoint of the run, not the best", "false", true},
     {"prompts", "a file with a prompt on each line", ""},
     {"prompt_ids",
      "the prompt as token ids, separated by commas: for models that were not trained on text", ""},
     {"json", "a line of JSON for each prompt: prompt, text, tokens, finish", "false", true}},
    {"[sample]", "batch", "device", "precision", "attention", "kernels", "threads", "cpu_level",
     "memory_limit"},
    {"sample", "complete", "chat", "infer", "inference", "predict"},
    {},
    {"[model]", "residual", "fp32_products", "deterministic", "graph", "gemm_table"}};

}  // namespace quern
