// quern help: what there is, and each command's own help.
#include <fmt/format.h>

#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern COMMAND [ARGUMENTS]\n"
    "       quern help [COMMAND | --markdown]\n"
    "       quern --version\n\n"
    "Trains Transformer language models, on the CPU and on the GPU.\n";

const std::vector<ExtraFlag> kFlags = {
    {"markdown", "print docs/configuration.md, the table of all configuration keys", "", true},
};

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      {"train", "train a model, or continue a run", run_train},
      {"sweep", "train every combination of some keys' values, and rank them", run_sweep},
      {"generate", "continue a prompt with a trained model", run_generate},
      {"eval", "loss and perplexity of a checkpoint on a file", run_eval},
      {"import", "read a Hugging Face folder into a run folder", run_import},
      {"export", "write a trained model as a Hugging Face folder", run_export},
      {"tokenizer", "learn a subword tokenizer, and look into one", run_tokenizer},
      {"data", "turn text into token files, and look into them", run_data},
      {"bench", "time training steps, attention and kernels", run_bench},
      {"profile", "where the time of a training step goes, op by op and kernel by kernel",
       run_profile},
      {"memory", "what a model needs in memory, predicted and measured", run_memory},
      {"report", "one HTML page about one run or several", run_report},
      {"watch", "follow a run in the terminal", run_watch},
      {"tune", "measure the fastest matrix products of this GPU", run_tune},
      {"verify", "check this build against reference cases", run_verify},
      {"info", "the build, the processors, the libraries", run_info},
      {"help", "this text, or a command's", run_help},
  };
  return kCommands;
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (name == command.name) return command;
    names.emplace_back(command.name);
  }
  throw UsageError(cat("unknown command '", name, "'", did_you_mean(name, names),
                       "\n`quern help` lists the commands"));
}

int run_help(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.extra.at("markdown") == "true") {
    fmt::print("{}", config_markdown());
    return 0;
  }
  if (parsed.positional.size() > 1) {
    throw UsageError(cat("help: found '", parsed.positional[1], "', expected one command"));
  }
  if (!parsed.positional.empty() && parsed.positional[0] != "help") {
    return find_command(parsed.positional[0]).run({"--help"});
  }
  fmt::print("{}\n", kUsage);
  for (const Command& command : commands()) {
    fmt::print("  {:<10} {}\n", command.name, command.summary);
  }
  fmt::print("\n`quern help COMMAND` lists a command's flags.\n");
  return 0;
}

}  // namespace quern
