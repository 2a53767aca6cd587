// The subcommands of `quern data`, one file each. `args` come after the subcommand's name.
#pragma once

#include "commands.h"

namespace quern {

int run_data_prepare(const Arguments& args);
int run_data_inspect(const Arguments& args);

}  // namespace quern
