// The subcommands of `quern tokenizer`. `args` come after the subcommand's name.
#pragma once

#include "commands.h"

namespace quern {

int run_tokenizer_train(const Arguments& args);
int run_tokenizer_encode(const Arguments& args);
int run_tokenizer_decode(const Arguments& args);
int run_tokenizer_info(const Arguments& args);

}  // namespace quern
