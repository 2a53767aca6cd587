// quern data: finds the subcommand.
#include <fmt/format.h>

#include "data_commands.h"
#include "train/config_parse.h"

namespace quern {

namespace {

const std::vector<Command> kSubcommands = {
    {"prepare", "turn text into token files", run_data_prepare},
    {"inspect", "what token files hold", run_data_inspect},
};

std::string usage() {
  std::string text = "Usage: quern data SUBCOMMAND [ARGUMENTS]\n\n";
  for (const Command& command : kSubcommands) {
    text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  }
  return text + "\n`quern data SUBCOMMAND --help` lists a subcommand's flags.\n";
}

}  // namespace

int run_data(const Arguments& args) {
  if (args.empty()) throw UsageError("data: found nothing, expected a subcommand\n" + usage());
  if (args[0] == "--help" || args[0] == "-h") {
    fmt::print("{}", usage());
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kSubcommands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
    names.emplace_back(command.name);
  }
  throw UsageError(cat("data: found '", args[0], "', expected ",
                       fmt::to_string(fmt::join(names, " or ")), did_you_mean(args[0], names)));
}

}  // namespace quern
