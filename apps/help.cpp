// quern help: the commands, and each command's flags.
#include <fmt/format.h>

#include "commands.h"
#include "config/config_print.h"
#include "man_page.h"

namespace quern {

namespace {

int run_help(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kHelpCommand.flags);
  if (!parsed.given.empty()) {
    throw UsageError(
        cat("help: found --", *parsed.given.begin(), ", expected --all, --markdown or --man"));
  }
  if (parsed.extra.at("markdown") == "true") {
    fmt::print("{}", config_markdown());
    return 0;
  }
  if (parsed.extra.at("man") == "true") {
    fmt::print("{}", man_page());
    return 0;
  }
  size_t used = 0;
  const Command& command = find_command(parsed.positional, used);
  if (used < parsed.positional.size()) {
    throw UsageError(cat("help: found '", parsed.positional[used], "', expected one command"));
  }
  fmt::print("{}", help_text(command, parsed.extra.at("all") == "true"));
  return 0;
}

}  // namespace

std::string help_text(const Command& command, bool all) {
  std::string text = command.usage;
  const std::string name = command.name.empty() ? "" : command.name + " ";
  if (!command.subcommands.empty()) {
    text += "\n";
    for (const Command* one : command.subcommands) {
      text += fmt::format("  {:<11} {}\n", one->name.substr(name.size()), one->summary);
    }
    return text + fmt::format("\n`quern help {}COMMAND` lists a command's flags.\n", name);
  }
  const bool has_keys = !command.keys.empty();
  const std::string flags =
      config_help(command.flags, all && has_keys ? all_sections() : command.keys);
  if (!flags.empty()) text += "\n" + flags;
  if (has_keys && !all) {
    text += fmt::format("\n`quern {}--help-all` lists every configuration key.\n", name);
  }
  return text;
}

const Command kHelpCommand{
    "help",
    "this text, or a command's",
    R"(Usage: quern help [COMMAND] [--all | --markdown | --man]

Lists the commands, or the flags and the configuration keys that apply to one.
)",
    run_help,
    {{"all", "list every configuration key that the command reads", "", true},
     {"markdown", "print docs/configuration.md, the table of all configuration keys", "", true},
     {"man", "print the man page, in roff", "", true}}};

}  // namespace quern
