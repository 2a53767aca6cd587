// The commands of `quern`, one file each: the only list of them and of their flags. Help, shell
// completion and the man page are printed from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config_parse.h"

namespace quern {

using Arguments = std::vector<std::string>;

struct Command {
  std::string name = {};     // including its group: "train", "data prepare"
  std::string summary = {};  // one line
  std::string usage = {};    // "Usage: ...", an empty line, and a description of the command
  // Takes the arguments after the name, without --help, and returns the exit code. Throws
  // quern::Error (exit 1) or UsageError (exit 2). Empty for a group.
  std::function<int(const Arguments&)> run = {};
  std::vector<ExtraFlag> flags = {};         // the command's own
  std::vector<std::string> keys = {};        // configuration keys that apply: names, or "[section]"
  std::vector<std::string> near_words = {};  // synonyms, for which an error suggests the name
  std::vector<const Command*> subcommands = {};
  std::vector<std::string> further = {};  // keys accepted besides: only --help-all lists them
  Config (*defaults)() = nullptr;         // of the keys, where they are not Config's own
};

inline Config default_config(const Command& command) {
  return command.defaults ? command.defaults() : Config{};
}

// All that the command accepts.
inline std::vector<std::string> accepted_keys(const Command& command) {
  std::vector<std::string> keys = command.keys;
  keys.insert(keys.end(), command.further.begin(), command.further.end());
  return keys;
}

extern const Command kTrainCommand, kSweepCommand, kGenerateCommand, kEvalCommand, kImportCommand,
    kExportCommand, kProfileCommand, kMemoryCommand, kReportCommand, kWatchCommand, kTuneCommand,
    kVerifyCommand, kVerifyRunCommand, kInfoCommand, kCompletionCommand, kHelpCommand;
extern const Command kDataPrepareCommand, kDataInspectCommand;
extern const Command kTokenizerTrainCommand, kTokenizerEncodeCommand, kTokenizerDecodeCommand,
    kTokenizerInfoCommand;
extern const Command kBenchStepCommand, kBenchAttentionCommand, kBenchKernelsCommand,
    kBenchDecodeCommand, kBenchMatmulCommand, kBenchMlpCommand, kBenchAccumulateCommand,
    kBenchDtypesCommand, kBenchCollectivesCommand;

// The program itself: the group of all commands, in the order of help.
const Command& program();

// The command that `args` begin with, and the number of arguments that name it. Returns the group
// if no command follows. Throws UsageError that suggests the nearest name.
const Command& find_command(const Arguments& args, size_t& used);

// Runs the command that `args` begin with, or prints its help.
int run_program(const Arguments& args);

// The text of `quern help COMMAND`. With `all`: every configuration key that the command reads, not
// only those that apply to it.
std::string help_text(const Command& command, bool all);

}  // namespace quern
