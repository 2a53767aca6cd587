// quern help: the commands, each command's flags, and the man page, from the tables of commands and
// of configuration keys.
#include <fmt/format.h>

#include <sstream>

#include "base/build_info.h"
#include "commands.h"
#include "config/config_print.h"

namespace quern {

namespace {

// Escapes backslashes, hyphens and characters that open a request, for roff.
std::string escaped(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    line_begins = c == '\n';
  }
  return out;
}

// The lines after "Usage: ", without their common indent.
std::string synopsis(const std::string& lines) {
  std::string out;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) out += escaped(line.substr(7)) + "\n";
  return ".nf\n" + out + ".fi\n";
}

// The synopsis keeps its lines; paragraphs are filled, but lines that begin with a space are kept.
std::string description(const std::string& usage) {
  const size_t end = usage.find("\n\n");
  std::string out = synopsis(usage.substr(0, end));
  if (end == std::string::npos) return out;
  out += ".PP\n";
  std::istringstream lines(usage.substr(end + 2));
  for (std::string line; std::getline(lines, line);) {
    out += line.empty()     ? ".PP\n"
           : line[0] == ' ' ? escaped(line) + "\n.br\n"
                            : escaped(line) + "\n";
  }
  return out;
}

std::string entry(const std::string& flag, const std::string& help) {
  return fmt::format(".TP\n\\fB\\-\\-{}\\fR\n{}\n", escaped(flag), escaped(help));
}

std::string command_section(const Command& command) {
  std::string out = fmt::format(".SS quern {}\n{}", command.name, description(command.usage));
  for (const ExtraFlag& flag : command.flags) out += entry(flag.name, help_of(flag));
  if (command.keys.empty()) return out;
  out += ".PP\nConfiguration keys that apply:";
  for (const ConfigKey* key : applicable_keys(command.keys, command.flags)) {
    out += cat(" ", escaped(key->name));
  }
  return out + ".\n";
}

std::string command_sections(const Command& group) {
  std::string out;
  for (const Command* command : group.subcommands) {
    out += command->subcommands.empty() ? command_section(*command) : command_sections(*command);
  }
  return out;
}

// The man page quern(1), in roff, with the macros of man(7).
std::string man_page() {
  std::string out = fmt::format(".TH QUERN 1 \"\" \"quern {}\" \"User Commands\"\n",
                                escaped(build_info().version));
  out += ".SH NAME\nquern \\- train Transformer language models on CPUs and GPUs\n.SH SYNOPSIS\n";
  out += description(program().usage);
  out += ".SH COMMANDS\n" + command_sections(program()) + ".SH CONFIGURATION KEYS\n";
  out +=
      "A key is a flag, and a line in its section of the TOML file that\n.B \\-\\-config\n"
      "names.  Flags override the file.\n";
  std::string section;
  for (const ConfigKey& key : config_table()) {
    if (key.section != section) out += fmt::format(".SS [{}]\n", section = key.section);
    out += entry(key.name, help_of(key));
  }
  out +=
      ".SH EXIT STATUS\n0 on success, 1 on a failure, 2 on a usage error, and 128 plus the "
      "signal's number\nafter a signal.\n";
  return out;
}

int run_help(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kHelpCommand.flags);
  if (!parsed.given.empty()) {
    throw UsageError(
        cat("help: found --", *parsed.given.begin(), ", expected --all, --markdown or --man"));
  }
  if (parsed.on("markdown")) {
    fmt::print("{}", config_markdown());
    return 0;
  }
  if (parsed.on("man")) {
    fmt::print("{}", man_page());
    return 0;
  }
  size_t used = 0;
  const Command& command = find_command(parsed.positional, used);
  if (used < parsed.positional.size()) {
    throw UsageError(cat("help: found '", parsed.positional[used], "', expected one command"));
  }
  fmt::print("{}", help_text(command, parsed.on("all")));
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
  const std::string flags = config_help(command.flags, all ? accepted_keys(command) : command.keys,
                                        default_config(command));
  if (!flags.empty()) text += "\n" + flags;
  if (!command.further.empty() && !all) {
    text += fmt::format("\n`quern {}--help-all` lists every configuration key that it accepts.\n",
                        name);
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
