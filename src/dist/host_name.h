// The name of this machine, for messages and to find the ranks that share it.
#pragma once

#include <string>

namespace quern {

std::string host_name();
// "rank 1 of 3 on HOST"
std::string rank_text(int rank, int size);

}  // namespace quern
