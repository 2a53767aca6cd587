// quern completion: shell scripts, which ask the program for the words that may follow.
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "config/config_print.h"

namespace quern {

namespace {

constexpr const char* kBash = R"text(# Completes quern in bash.
_quern() {
  local IFS=$'\n' program=${1/#\~/$HOME}
  COMPREPLY=($("$program" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _quern quern
)text";

constexpr const char* kZsh = R"text(#compdef quern
_quern() {
  local -a found
  found=(${(f)"$(${~words[1]} completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then
    found=(${found//$'\t'/:})
    _describe quern found
  else
    _files
  fi
}
if [[ $funcstack[1] == _quern ]]; then _quern "$@"; else compdef _quern quern; fi
)text";

constexpr const char* kFish = R"text(# Completes quern in fish.
function __quern_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l found ($words[1] completion words -- $words[2..-1] "$typed" 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path "$typed"
    end
end
complete -c quern -f -a '(__quern_complete)'
)text";

struct Word {
  std::string word, meaning;
};

// Prints the word if it begins as typed; returns whether it does.
bool print_word(const std::string& typed, const std::string& word, const std::string& meaning) {
  if (!word.starts_with(typed)) return false;
  fmt::print("{}{}{}\n", word, meaning.empty() ? "" : "\t", meaning);
  return true;
}

// Flags may use - or _: the completion follows the typed one.
std::string spelled(std::string flag, const std::string& typed) {
  if (typed.find('-', 2) != std::string::npos) std::ranges::replace(flag, '_', '-');
  return "--" + flag;
}

// A command's own flags and the keys in `keys`.
std::vector<Word> flag_words(const Command& command, const std::vector<std::string>& keys) {
  std::vector<Word> words;
  for (const ExtraFlag& flag : command.flags) words.push_back({flag.name, flag.help});
  if (!keys.empty()) words.push_back({"config", "TOML file with configuration keys"});
  for (const ConfigKey* key : applicable_keys(keys, command.flags)) {
    words.push_back({key->name, key->help});
  }
  words.push_back({"help", "list this command's flags"});
  return words;
}

// Prints the flags that begin as typed; keys hidden from --help only if there is no other match.
void print_flags(const Command& command, const std::string& typed) {
  bool found = false;
  const auto print = [&](const std::vector<std::string>& keys) {
    for (const auto& [name, meaning] : flag_words(command, keys)) {
      found = print_word(typed, spelled(name, typed), meaning) || found;
    }
  };
  print(command.keys);
  if (!found) print(command.further);
}

// Prints the values of a flag ("--size"), each after `before`.
void print_values(const Command& command, std::string flag, const std::string& before,
                  const std::string& typed) {
  flag.erase(0, 2);
  std::ranges::replace(flag, '-', '_');
  std::vector<std::string> values;
  const auto own = std::ranges::find(command.flags, flag, &ExtraFlag::name);
  if (own != command.flags.end()) {
    if (own->values) values = own->values();
  } else if (const ConfigKey* key = find_key(flag)) {
    values = key->choices;
  }
  for (const std::string& value : values) print_word(typed, before + value, "");
}

void print_words(Arguments words) {
  if (words.empty()) words.emplace_back();
  std::string typed = words.back();
  words.pop_back();
  if (typed == "=") typed.clear();  // bash splits --size=toy at the =
  std::erase(words, "=");
  if (!words.empty() && words[0] == "help") words.erase(words.begin());
  size_t used = 0;
  const Command& command = find_command(words, used);
  const bool after_flag = !words.empty() && words.back().starts_with("--");
  const size_t equals = typed.find('=');
  if (typed.starts_with("--") && equals != std::string::npos) {
    print_values(command, typed.substr(0, equals), typed.substr(0, equals + 1), typed);
  } else if (typed.starts_with("-")) {
    print_flags(command, typed);
  } else if (after_flag) {
    print_values(command, words.back(), "", typed);
  } else if (used == words.size()) {
    for (const Command* one : command.subcommands) {
      print_word(typed, one->name.substr(one->name.rfind(' ') + 1), one->summary);
    }
  }
}

int run_completion(const Arguments& args) {
  const std::string shell = args.empty() ? "nothing" : args[0];
  if (shell == "bash") {
    fmt::print("{}", kBash);
  } else if (shell == "zsh") {
    fmt::print("{}", kZsh);
  } else if (shell == "fish") {
    fmt::print("{}", kFish);
  } else if (shell == "words" && args.size() > 1 && args[1] == "--") {
    print_words({args.begin() + 2, args.end()});
  } else {
    throw UsageError(cat("completion: found ", shell, ", expected bash, zsh or fish"));
  }
  return 0;
}

}  // namespace

const Command kCompletionCommand{"completion", "print a completion script for a shell",
                                 R"text(Usage: quern completion bash|zsh|fish
       quern completion words -- [WORD ...]

Prints a script that completes commands, flags and their values:

    bash  eval "$(quern completion bash)" in ~/.bashrc
    zsh   quern completion zsh > DIRECTORY_OF_FPATH/_quern
    fish  quern completion fish > ~/.config/fish/completions/quern.fish

The scripts call `quern completion words` with the words of a command line, of
which the last is being typed. It prints each word that may stand there, a tab
and its meaning; nothing where a file name is expected.
)text",
                                 run_completion};

}  // namespace quern
