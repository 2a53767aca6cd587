// quern eval: loss and perplexity of a checkpoint on a file.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/counted.h"
#include "base/error.h"
#include "bench/table.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/check_data.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "run/run_folder.h"
#include "run/saved_model.h"
#include "run/train_state.h"
#include "terminal.h"
#include "train/evaluate.h"
#include "train/memory_report.h"

namespace quern {

namespace {

int run_eval(const Arguments& args) {
  const ParsedArgs parsed = parse_unvalidated(args, kEvalCommand.flags);
  if (parsed.positional.size() != 2) {
    throw UsageError(fmt::format("eval: expected a run folder and a file\n{}", kEvalCommand.usage));
  }
  check_keys(parsed.flags, kEvalCommand);
  Config config = parsed.config;
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
  const ModelConfig& model = saved.state.model;
  std::set<std::string> dimensions = parsed.given;
  dimensions.erase("ctx");  // of the windows; may differ from the model's
  if (!parsed.flags.contains("from")) dimensions.erase("from");  // the training's own
  saved.check_given(parsed.config, dimensions);
  const int64_t T = parsed.given.contains("ctx") ? parsed.config.model.context
                                                 : usual_context(model, saved.state.iteration > 0);
  QUERN_CHECK(T <= model.context, "eval: ctx is ", T, ", but ", saved.checkpoint.string(),
              " takes at most ", model.context, " tokens");
  const std::string& file = parsed.positional[1];
  const std::string validation = has_validation_files(file) ? file : "";
  Dataset data = open_dataset({file, validation, 0.0, config.data.format}, T);
  if (validation.empty() && std::filesystem::is_directory(file)) {
    spdlog::warn("{} has no validation split: the loss is that of its training split", file);
  }
  if (data.is_text && saved.tokenizer && !saved.state.is_text) {
    data = encode_text(data, *saved.tokenizer);
  }
  const TokenFacts facts = read_token_facts(data);
  saved.check_kind(file, data.is_text || facts.of_bytes());
  const RunTokenizer tokenizer{run_of(saved.checkpoint) / "tokenizer", saved.tokenizer};
  check_tokenizer(facts, tokenizer);
  check_vocabulary(data, facts, model.vocab_size, "the model");
  const BatchOptions options = batch_options(config.data, data, facts, tokenizer);
  const TokenSource& source = data.validation.size() > 0 ? data.validation : data.train;
  const Evaluation e = memory.run(config, MemoryPass::forward, ".", [&] {
    return evaluate(saved.instance->model, source, config.train.batch, T, config.train.eval_batches,
                    options.document_end);
  });
  const double perplexity = std::exp(e.loss);
  if (parsed.on("json")) {
    const nlohmann::ordered_json row{{"loss", e.loss},  // null: not finite
                                     {"perplexity", perplexity},
                                     {"windows", e.windows},
                                     {"context", T},
                                     {"seconds", rounded(e.seconds, 3)}};
    fmt::print("{}\n", row.dump());
    return 0;
  }
  fmt::print("loss {:.4f} nats a token ({:.4f} bits), perplexity {:.3f}, {} of {}, {:.1f} s\n",
             e.loss, e.loss / std::log(2.0), perplexity, counted(e.windows, "window"),
             counted(T, "token"), e.seconds);
  return 0;
}

}  // namespace

const Command kEvalCommand{
    "eval",
    "loss and perplexity of a checkpoint on a file",
    R"(Usage: quern eval RUN FILE [--KEY VALUE ...]

Mean loss of RUN's best checkpoint (or of the checkpoint that RUN names) over
the non-overlapping windows of FILE. FILE is text, which RUN's tokenizer
encodes, or a token file. A folder of `quern data prepare` means its
validation split. --ctx sets windows shorter than the model's context.
)",
    run_eval,
    {{"latest", "use the newest checkpoint of the run, not the best", "false", true},
     {"json", "print one line of JSON", "false", true}},
    {"ctx", "batch", "eval_batches", "format", "document_mask", "device", "precision", "attention",
     "kernels", "threads", "cpu_level", "memory_limit"},
    {"evaluate", "validate", "perplexity", "loss", "score"},
    {},
    {"[model]", "residual", "fp32_products", "deterministic", "graph", "gemm_table"}};

}  // namespace quern
