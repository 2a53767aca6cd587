// `quern data ...` and `quern tokenizer ...`: finds the subcommand.
#include <fmt/format.h>

#include "commands.h"
#include "config/config_parse.h"

namespace quern {

namespace {

std::string usage(const std::string& command, const std::vector<Command>& subcommands,
                  const std::string& footer) {
  std::string text = fmt::format("Usage: quern {} SUBCOMMAND [ARGUMENTS]\n\n", command);
  for (const Command& subcommand : subcommands) {
    text += fmt::format("  {:<10} {}\n", subcommand.name, subcommand.summary);
  }
  return text + "\n" + footer + "\n";
}

// "train, encode, decode or info"
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

}  // namespace

int run_subcommand(const std::string& command, const std::vector<Command>& subcommands,
                   const std::string& footer, const Arguments& args) {
  const std::string text = usage(command, subcommands, footer);
  if (args.empty()) throw UsageError(command + ": found nothing, expected a subcommand\n" + text);
  if (args[0] == "--help" || args[0] == "-h") {
    fmt::print("{}", text);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& subcommand : subcommands) {
    if (args[0] == subcommand.name) return subcommand.run({args.begin() + 1, args.end()});
    names.emplace_back(subcommand.name);
  }
  throw UsageError(cat(command, ": found '", args[0], "', expected ", alternatives(names),
                       did_you_mean(args[0], names)));
}

}  // namespace quern
