// What several commands print alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config_parse.h"

namespace quern {

// A line for each flag of a command that takes no configuration: its name in a column of `width`,
// its help, and its default when it has one.
std::string flags_text(const std::vector<ExtraFlag>& flags, int width);

// "1 document", "2 documents".
std::string counted(int64_t count, const std::string& noun);

// 59s, 12m05s, 3h07m.
std::string duration_text(double seconds);

}  // namespace quern
