// The man page quern(1), from the table of commands and the configuration table.
#pragma once

#include <string>

#include "commands.h"

namespace quern {

std::string man_page();  // in roff, with the macros of man(7)

}  // namespace quern
