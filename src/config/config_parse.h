// Parses a command line and a TOML file into a Config. Every failure is a UsageError with the key,
// its location, the value found and the value expected.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace quern {

// A flag of one subcommand that is not a configuration key (bench's --phases). It hides a
// configuration key of the same name.
struct ExtraFlag {
  std::string name, help;
  std::string value;                               // the default
  bool is_switch = false;                          // takes true or false, or no value: true
  std::vector<std::string> (*values)() = nullptr;  // the allowed values, if help lists them
  bool may_be_empty = false;                       // a text; else an empty value is an error
};

// Copies the dimensions of the model that config.model.from names. `given`: the keys set by the
// file or a flag.
using ResolveFrom = std::function<void(Config& config, const std::set<std::string>& given)>;

struct ParsedArgs {
  Config config;
  std::set<std::string> given;               // configuration keys set by the file or a flag
  std::set<std::string> flags;               // of these, the keys set by a flag
  std::map<std::string, std::string> extra;  // every extra flag's value
  std::set<std::string> extra_given;         // extra flags on the command line
  std::vector<std::string> positional;
  std::string config_file;  // --config; empty when not given

  bool on(const std::string& name) const { return extra.at(name) == "true"; }  // of a switch
};

// Checks keys against each other: the dimensions, and the dimensions against the attention. Throws
// UsageError.
void validate(const Config& config);
// Checks `parallel` against the number of ranks. Call it when the launcher's number is known.
void validate_ranks(const ParallelSection& parallel);

// Applies `--config FILE`, then the flags (wherever --config stands), to `base`, and validates.
// Flags: --key value, --key=value, --switch; a flag's name may use - or _; `--` ends the flags.
// Extra flags and other arguments may not be empty. Within each layer `size` comes first, so that
// dimensions override it. If model.from is given, `resolve` fills in its dimensions before the
// validation; this function opens no model folder. A file's model.from has no effect on a resumed
// run.
ParsedArgs parse_args(const std::vector<std::string>& args,
                      const std::vector<ExtraFlag>& extra = {}, const Config& base = {},
                      const ResolveFrom& resolve = {});

// The same without the validation, where the base is still unknown.
ParsedArgs parse_unvalidated(const std::vector<std::string>& args,
                             const std::vector<ExtraFlag>& extra, const Config& base = {},
                             const ResolveFrom& resolve = {});

// Applies the file's keys to `base`, and validates. Throws when the file has a seal
// (io/checksum.h) that does not fit.
Config load_config(const std::string& path, const Config& base = {});

// The candidate that other programs call `word` (--max_iters: steps), else the nearest by edit
// distance; empty when none is near. One that begins with `word` is at distance 1, if `word` has
// three letters or more.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
// The same as ", did you mean --batch?".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates,
                         const std::string& prefix = "");

}  // namespace quern
