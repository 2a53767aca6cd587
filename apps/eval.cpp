// quern eval: loss and perplexity of a checkpoint on a file.
#include <fmt/format.h>

#include <cmath>

#include "commands.h"
#include "train/config_parse.h"
#include "train/config_print.h"
#include "train/evaluate.h"
#include "train/memory_report.h"
#include "train/saved_model.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern eval RUN FILE [--KEY VALUE ...]\n\n"
    "Mean loss over the non-overlapping windows of FILE, a text or token file, of RUN's best "
    "checkpoint (or of the\n"
    "checkpoint that RUN names). With --json one line of JSON.\n";

const std::vector<ExtraFlag> kFlags = {
    {"latest", "use the newest checkpoint of the run, not the best", "false", true},
    {"json", "print one line of JSON", "false", true},
};

}  // namespace

int run_eval(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.help) {
    fmt::print("{}\n{}", kUsage, config_help(kFlags));
    return 0;
  }
  if (parsed.positional.size() != 2)
    throw UsageError(fmt::format("eval: expected a run folder and a file\n{}", kUsage));
  Config config = parsed.config;
  const auto context = make_context(config.compute, 0);
  const ContextScope scope(*context);
  MemoryWatch memory;
  const SavedModel saved = memory.run(config, MemoryPass::forward, ".", [&] {
    return load_saved_model(parsed.positional[0], parsed.extra.at("latest") == "true",
                            config.compute);
  });
  const ModelConfig& model = saved.state.model;
  static_cast<ModelConfig&>(config.model) = model;
  const Dataset data =
      open_dataset({parsed.positional[1], "", 0.0, config.data.format}, model.context);
  saved.check_kind(parsed.positional[1], data.is_text);
  data.train.check_vocabulary(model.vocab_size);
  const Evaluation e = memory.run(config, MemoryPass::forward, ".", [&] {
    return evaluate(saved.instance->model, data.train, config.train.batch, model.context,
                    config.train.eval_batches);
  });
  const double perplexity = std::exp(e.loss);
  if (parsed.extra.at("json") == "true") {
    fmt::print(
        "{{\"loss\": {}, \"perplexity\": {}, \"windows\": {}, \"context\": {}, \"seconds\": "
        "{:.3f}}}\n",
        e.loss, perplexity, e.windows, model.context, e.seconds);
    return 0;
  }
  fmt::print(
      "loss {:.4f} nats a token ({:.4f} bits), perplexity {:.3f}, {} windows of {} tokens, {:.1f} "
      "s\n",
      e.loss, e.loss / std::log(2.0), perplexity, e.windows, model.context, e.seconds);
  return 0;
}

}  // namespace quern
