#include "commands.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/build_info.h"
#include "config/config_table.h"
#include "io/python_line.h"

namespace quern {

namespace {

int run_version(const Arguments& args) {
  if (!args.empty()) throw UsageError(cat("version: found '", args[0], "', expected nothing"));
  fmt::print("quern {} ({})\n", build_info().version, build_info().commit);
  return 0;
}

// Runs a command line without a command: only a flag.
int run_flag(const Arguments& args) {
  if (args.empty()) return kHelpCommand.run({});
  if (args[0] == "--version" || args[0] == "-V" || args[0] == "-v") return run_version({});
  throw UsageError(cat("unknown flag ", args[0], did_you_mean(args[0], {"--help", "--version"}),
                       "\n`quern help` lists the commands"));
}

const Command kVersionCommand{
    "version", "print version and commit",
    "Usage: quern version\n\nPrints version and commit; `quern info` says more.\n", run_version};

const Command kDataCommand{.name = "data",
                           .summary = "turn text into token files, and inspect them",
                           .usage = "Usage: quern data SUBCOMMAND [ARGUMENTS]\n",
                           .near_words = {"dataset", "preprocess", "tokenize"},
                           .subcommands = {&kDataPrepareCommand, &kDataInspectCommand}};

const Command kTokenizerCommand{
    .name = "tokenizer",
    .summary = "train a subword tokenizer, and inspect one",
    .usage = "Usage: quern tokenizer SUBCOMMAND [ARGUMENTS]\n\ndocs/tokenizers.md says more.\n",
    .near_words = {"bpe", "sentencepiece", "vocab"},
    .subcommands = {&kTokenizerTrainCommand, &kTokenizerEncodeCommand, &kTokenizerDecodeCommand,
                    &kTokenizerInfoCommand}};

const Command kBenchCommand{
    .name = "bench",
    .summary = "time training steps, attention and kernels",
    .usage = "Usage: quern bench BENCHMARK [--KEY VALUE ...]\n",
    .near_words = {"benchmark", "time", "speed"},
    .subcommands = {&kBenchStepCommand, &kBenchAttentionCommand, &kBenchKernelsCommand,
                    &kBenchDecodeCommand, &kBenchMatmulCommand, &kBenchMlpCommand,
                    &kBenchAccumulateCommand, &kBenchDtypesCommand, &kBenchCollectivesCommand}};

// "data prepare" -> "prepare"
std::string last_word(const std::string& name) {
  return name.substr(name.rfind(' ') + 1);
}

// Every word that may stand for a command of `group`, with that command's name. A group's own names
// precede those of its subgroups, and names precede near words.
std::vector<std::pair<std::string, std::string>> known_words(const Command& group) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const Command* command : group.subcommands) {
    words.emplace_back(last_word(command->name), command->name);
  }
  for (const Command* command : group.subcommands) {
    for (const std::string& word : command->near_words) {
      words.emplace_back(word, command->name);
    }
    for (const auto& found : known_words(*command)) words.push_back(found);
  }
  return words;
}

// `next`: the argument after `word`; empty if there is none.
[[noreturn]] void unknown_command(const Command& group, const std::string& word,
                                  const std::string& next) {
  const auto known = known_words(group);
  std::vector<std::string> words, names;
  for (const auto& [name, unused] : known) words.push_back(name);
  for (const Command* command : group.subcommands) names.push_back(last_word(command->name));
  const std::string near = nearest(word, words);
  std::string hint, name;
  if (!near.empty()) {
    name = known[static_cast<size_t>(std::ranges::find(words, near) - words.begin())].second;
    hint = cat(", did you mean `quern ", name, "`?");
  }
  // `chat org/model`, `download org/model`
  const bool wants_model = name == kGenerateCommand.name || name == kImportCommand.name;
  const std::string download = wants_model ? hub_hint(next, HubKind::model) : "";
  if (!download.empty()) hint += cat("\n", next, ":", download.substr(1));
  if (group.name.empty()) {
    throw UsageError(
        cat("unknown command '", word, "'", hint, "\n`quern help` lists the commands"));
  }
  throw UsageError(cat(group.name, ": found '", word, "', expected one of ",
                       fmt::to_string(fmt::join(names, ", ")), hint));
}

// True for "--flag" when the next argument is its value.
bool takes_value(const Command& command, const std::string& arg) {
  if (!arg.starts_with("--") || arg.find('=') != std::string::npos) return false;
  std::string name = arg.substr(2);
  std::ranges::replace(name, '-', '_');
  for (const ExtraFlag& flag : command.flags) {
    if (flag.name == name) return !flag.is_switch;
  }
  if (name == "config") return true;
  const auto key = std::ranges::find(config_table(), name, &ConfigKey::name);
  return key != config_table().end() && key->kind != ValueKind::boolean;
}

bool asks_for_help(const Command& command, const Arguments& args, bool& all) {
  bool value = false;
  for (const std::string& arg : args) {
    if (arg == "--") return false;
    all = arg == "--help-all" || arg == "--help_all";
    if (all || arg == "--help" || (arg == "-h" && !value)) return true;
    value = takes_value(command, arg);
  }
  return false;
}

}  // namespace

const Command& program() {
  static const Command kProgram{
      .usage =
          "Usage: quern COMMAND [ARGUMENTS]\n"
          "       quern help [COMMAND] [--all | --markdown | --man]\n"
          "       quern --version\n\n"
          "Trains Transformer language models on CPUs and GPUs.\n",
      .run = run_flag,
      .subcommands = {&kTrainCommand,  &kSweepCommand,      &kGenerateCommand,  &kEvalCommand,
                      &kImportCommand, &kExportCommand,     &kTokenizerCommand, &kDataCommand,
                      &kBenchCommand,  &kProfileCommand,    &kMemoryCommand,    &kReportCommand,
                      &kWatchCommand,  &kVerifyRunCommand,  &kTuneCommand,      &kVerifyCommand,
                      &kInfoCommand,   &kCompletionCommand, &kVersionCommand,   &kHelpCommand}};
  return kProgram;
}

const Command& find_command(const Arguments& args, size_t& used) {
  const Command* command = &program();
  for (used = 0; !command->subcommands.empty() && used < args.size(); ++used) {
    const std::string& word = args[used];
    if (word.starts_with("-")) break;
    const auto found = std::ranges::find_if(
        command->subcommands, [&](const Command* one) { return last_word(one->name) == word; });
    if (found == command->subcommands.end())
      unknown_command(*command, word, used + 1 < args.size() ? args[used + 1] : "");
    command = *found;
  }
  return *command;
}

int run_program(const Arguments& args) {
  size_t used = 0;
  const Command& command = find_command(args, used);
  const Arguments rest(args.begin() + static_cast<std::ptrdiff_t>(used), args.end());
  bool all = false;
  if (asks_for_help(command, rest, all)) {
    fmt::print("{}", help_text(command, all));
    return 0;
  }
  if (!command.run) {
    throw UsageError(cat(command.name, ": found ", rest.empty() ? "nothing" : rest[0],
                         ", expected a subcommand\n", help_text(command, false)));
  }
  return command.run(rest);
}

}  // namespace quern
