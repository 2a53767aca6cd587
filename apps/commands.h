// The subcommands of `quern`, one file each. They return the exit code and throw quern::Error (exit
// 1) or UsageError (exit 2) for main to print.
#pragma once

#include <string>
#include <vector>

namespace quern {

using Arguments = std::vector<std::string>;  // after the subcommand's name

int run_train(const Arguments& args);
int run_sweep(const Arguments& args);
int run_generate(const Arguments& args);
int run_eval(const Arguments& args);
int run_import(const Arguments& args);
int run_export(const Arguments& args);
int run_data(const Arguments& args);
int run_tokenizer(const Arguments& args);
int run_bench(const Arguments& args);
int run_profile(const Arguments& args);
int run_memory(const Arguments& args);
int run_report(const Arguments& args);
int run_watch(const Arguments& args);
int run_tune(const Arguments& args);
int run_verify(const Arguments& args);
int run_info(const Arguments& args);
int run_help(const Arguments& args);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

const std::vector<Command>& commands();                // in the order of help
const Command& find_command(const std::string& name);  // throws UsageError, naming the nearest

// `quern COMMAND SUBCOMMAND ...`: runs the one that args[0] names, or prints the usage, which ends
// in `footer`. Throws UsageError when there is none, naming the nearest.
int run_subcommand(const std::string& command, const std::vector<Command>& subcommands,
                   const std::string& footer, const Arguments& args);

}  // namespace quern
