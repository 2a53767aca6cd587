// The place of a process among the ranks of a training, as its launcher's variables tell it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quern {

inline constexpr const char* kOpenMpi = "Open MPI";

struct RankPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string store = {};              // address for open_store; empty: one rank
  bool own_store = false;     // a folder of this machine's that rank 0 removes after the start
  bool may_be_bound = false;  // the launcher may have given the rank its own cores
  std::string launcher = {};  // "torchrun"; empty: none
};

// The value of an environment variable; none when it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables environment_variables();

// Reads the first launcher's variables that are set: Quern's own (QUERN_RANK, ...), torchrun's,
// Open MPI's, Slurm's, PMI's. One rank is the same as no launcher. `store` replaces the launcher's
// address. Throws UsageError, with the variables and their values, when they do not fit together,
// or when the ranks are on several machines and no address is known.
RankPlace find_place(const Variables& variables, const std::string& store = "");

// The variables that make a child process `place` for find_place: "QUERN_RANK=2", ...
std::vector<std::string> variables_of(const RankPlace& place);

// Throws UsageError unless `store` is file:FOLDER or tcp:HOST:PORT. `name` begins the message.
void check_store(const std::string& name, const std::string& store);

// Slurm's list of hosts "node[001-004,007],gpu3": the first one, "node001".
std::string first_host(const std::string& list);
// Slurm's tasks per node "4(x2),3": those of one node, counted from 0; none if the list is invalid.
std::optional<int> tasks_on_node(const std::string& list, int node);

}  // namespace quern
