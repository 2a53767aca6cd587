// quern data: finds the subcommand.
#include "data_commands.h"

namespace quern {

namespace {

const std::vector<Command> kSubcommands = {
    {"prepare", "turn text into token files", run_data_prepare},
    {"inspect", "what token files hold", run_data_inspect},
};

}  // namespace

int run_data(const Arguments& args) {
  return run_subcommand("data", kSubcommands,
                        "`quern data SUBCOMMAND --help` lists a subcommand's flags.", args);
}

}  // namespace quern
