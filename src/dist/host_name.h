// The name of this machine, for messages and to find the ranks that share it.
#pragma once

#include <string>

namespace quern {

std::string host_name();
// Equal for all processes of a machine, also in containers, but different between machines, even if
// all are called "localhost".
std::string machine_id();
// "rank 1 of 3 on HOST"
std::string rank_text(int rank, int size);
// "rank 1 of 3 on HOST has failed: REASON", the first line of the reason.
std::string failure_text(const std::string& rank, const std::string& reason);

}  // namespace quern
