#include "ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"

namespace quern {

namespace {

constexpr int kMaxRanks = 65536;
constexpr int kMaxPort = 65535;

// Reads variables as numbers. Its errors name the launcher, the variable and the value.
class Reader {
 public:
  Reader(const Variables& variables, std::string launcher)
      : variables_(variables), launcher_(std::move(launcher)) {}

  std::optional<std::string> text(const std::string& name) const { return variables_(name); }
  std::string text_or(const std::string& name, const std::string& other) const {
    return variables_(name).value_or(other);
  }

  std::optional<int> number(const std::string& name, int least, int most) const {
    const std::optional<std::string> found = variables_(name);
    if (!found) return std::nullopt;
    const std::optional<int64_t> value = parse_number<int64_t>(*found);
    if (!value || *value < least || *value > most) {
      refuse(cat(name, " is '", *found, "', expected a number from ", least, " to ", most));
    }
    return static_cast<int>(*value);
  }

  // Both or neither of the two must be set; false: neither.
  bool has(const std::string& rank, const std::string& size) const {
    const std::optional<std::string> one = variables_(rank), other = variables_(size);
    if (one && !other) refuse(cat(rank, " is ", *one, ", but ", size, " is not set"));
    if (other && !one) {
      if (parse_number<int64_t>(*other) == 1) return false;
      refuse(cat(size, " is ", *other, ", but ", rank, " is not set"));
    }
    return one.has_value();
  }

  [[noreturn]] void refuse(const std::string& message) const {
    throw UsageError(cat("ranks by ", launcher_, ": ", message));
  }
  const std::string& launcher() const { return launcher_; }

 private:
  const Variables& variables_;
  std::string launcher_;
};

struct Names {
  std::string rank, size, local_rank, local_size;
};

// The four numbers, of which the local ones may be absent: -1 then.
RankPlace read_numbers(const Reader& read, const Names& names) {
  RankPlace place;
  place.launcher = read.launcher();
  place.rank = *read.number(names.rank, 0, kMaxRanks - 1);
  place.size = *read.number(names.size, 1, kMaxRanks);
  place.local_rank = read.number(names.local_rank, 0, kMaxRanks - 1).value_or(-1);
  place.local_size = read.number(names.local_size, 1, kMaxRanks).value_or(-1);
  if (place.rank >= place.size) {
    read.refuse(cat(names.rank, " is ", place.rank, " and ", names.size, " is ", place.size,
                    ", expected a rank below the size"));
  }
  if (place.local_size > place.size) {
    read.refuse(cat(names.local_size, " is ", place.local_size, " and ", names.size, " is ",
                    place.size, ", expected at most the size"));
  }
  if (place.local_size > 0 && place.local_rank >= place.local_size) {
    read.refuse(cat(names.local_rank, " is ", place.local_rank, " and ", names.local_size, " is ",
                    place.local_size, ", expected a rank below the size"));
  }
  return place;
}

// Without local numbers: all ranks on this machine, or one a machine.
void complete_local(RankPlace& place, bool one_machine) {
  if (place.local_size < 0) {
    place.local_size = one_machine ? place.size : 1;
  }
  place.local_size = std::max(place.local_size, place.local_rank + 1);
  if (place.local_rank < 0) place.local_rank = one_machine ? place.rank : 0;
}

bool on_one_machine(const RankPlace& place) {
  return place.local_size == place.size;
}

// A folder for the ranks that one launch of this user has on this machine.
void use_own_store(RankPlace& place, const Reader& read, const std::string& id) {
  std::string name;
  for (const char c : id) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  constexpr size_t kLongest = 150;  // of 255 for a file name; the end differs most
  if (name.size() > kLongest) name.erase(0, name.size() - kLongest);
  place.store = cat("file:", read.text_or("TMPDIR", "/tmp"), "/quern-", getuid(), "-", name);
  place.own_store = true;
}

std::string tcp(const std::string& host, int port) {
  return cat("tcp:", host, ":", port);
}

// MASTER_ADDR and MASTER_PORT; none unless both are set.
std::optional<std::string> master_address(const Reader& read, int port_offset = 0) {
  const std::optional<std::string> host = read.text("MASTER_ADDR");
  const std::optional<int> port = read.number("MASTER_PORT", 1, kMaxPort);
  if (!host || host->empty() || !port) return std::nullopt;
  return tcp(*host, *port + port_offset <= kMaxPort ? *port + port_offset : *port - port_offset);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

std::optional<RankPlace> of_quern(const Variables& variables, const std::string& store) {
  const Reader read(variables, "QUERN_RANK");
  if (!read.has("QUERN_RANK", "QUERN_WORLD_SIZE")) return std::nullopt;
  RankPlace place = read_numbers(
      read, {"QUERN_RANK", "QUERN_WORLD_SIZE", "QUERN_LOCAL_RANK", "QUERN_LOCAL_SIZE"});
  place.store = read.text_or("QUERN_STORE", "");
  if (!place.store.empty() && store.empty()) check_store("QUERN_STORE", place.store);
  place.own_store = read.text_or("QUERN_OWN_STORE", "") == "1" && place.store.starts_with("file:");
  complete_local(place, (store.empty() ? place.store : store).starts_with("file:"));
  return place;
}

// torchrun's agent may serve a store of its own on MASTER_PORT, so the ranks meet elsewhere. The
// variables alone, without torchrun, are a common way to start processes by hand.
std::optional<RankPlace> of_torchrun(const Variables& variables) {
  const Reader read(variables, "torchrun");
  if (!read.has("RANK", "WORLD_SIZE")) return std::nullopt;
  RankPlace place = read_numbers(read, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  const std::optional<std::string> run = read.text("TORCHELASTIC_RUN_ID");
  const bool agent = read.text_or("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  const std::optional<std::string> master = master_address(read);
  complete_local(place, is_loopback(read.text_or("MASTER_ADDR", "")));
  if (run && on_one_machine(place)) {
    // .../none_q2x1/attempt_0/RANK/error.json: a folder of this start, unlike the other variables
    const std::filesystem::path error_file = read.text_or("TORCHELASTIC_ERROR_FILE", "");
    use_own_store(place, read,
                  cat("torchrun-", *run, "-", read.text_or("MASTER_PORT", ""), "-",
                      read.text_or("TORCHELASTIC_RESTART_COUNT", "0"), "-",
                      error_file.parent_path().parent_path().string()));
  } else if (master) {
    place.store = agent ? *master_address(read, 1) : *master;
  }
  return place;
}

std::optional<RankPlace> of_open_mpi(const Variables& variables) {
  const Reader read(variables, kOpenMpi);
  if (!read.has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  RankPlace place =
      read_numbers(read, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  complete_local(place, true);
  place.may_be_bound = true;
  const std::string job =
      read.text_or("PMIX_NAMESPACE", read.text_or("OMPI_MCA_ess_base_jobid", ""));
  if (on_one_machine(place) && !job.empty()) use_own_store(place, read, cat("mpirun-", job));
  return place;
}

// Only a step of srun has ranks: in the shell of salloc and the script of sbatch the number of
// tasks is that of the allocation.
std::optional<RankPlace> of_slurm(const Variables& variables) {
  const Reader read(variables, "Slurm");
  if (!read.text("SLURM_STEP_ID") || !read.text("SLURM_PROCID")) return std::nullopt;
  const std::string size =
      read.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  if (!read.text(size)) return std::nullopt;
  // mpiexec of MPICH may start its helpers by srun: these variables are then of the helpers.
  if (const auto pmi = read.text("PMI_SIZE"); pmi && pmi != read.text(size)) return std::nullopt;
  RankPlace place = read_numbers(read, {"SLURM_PROCID", size, "SLURM_LOCALID", ""});
  place.may_be_bound = true;
  const std::string nodes = read.text_or("SLURM_STEP_NUM_NODES", read.text_or("SLURM_NNODES", ""));
  const std::string tasks =
      read.text_or("SLURM_STEP_TASKS_PER_NODE", read.text_or("SLURM_TASKS_PER_NODE", ""));
  const int node = read.number("SLURM_NODEID", 0, kMaxRanks).value_or(0);
  if (const auto local = tasks_on_node(tasks, node); local && *local <= place.size) {
    place.local_size = *local;
  }
  complete_local(place, nodes == "1");
  const int job = read.number("SLURM_JOB_ID", 0, 2147483647).value_or(0);
  const std::string step = *read.text("SLURM_STEP_ID");
  const std::string hosts = read.text_or("SLURM_STEP_NODELIST", "");
  const std::string host =
      hosts.empty() ? read.text_or("SLURM_LAUNCH_NODE_IPADDR", "") : first_host(hosts);
  constexpr int kFirstPort = 10000, kPorts = 20000;  // below those that the system gives out
  if (const auto master = master_address(read)) {
    place.store = *master;
  } else if (on_one_machine(place)) {
    use_own_store(place, read,
                  cat("slurm-", job, "-", step, "-", read.text_or("SLURM_RESTART_COUNT", "0")));
  } else if (!host.empty()) {
    const int64_t number = parse_number<int64_t>(step).value_or(0);
    place.store = tcp(host, static_cast<int>(kFirstPort + (job * int64_t{7} + number) % kPorts));
  }
  return place;
}

std::optional<RankPlace> of_pmi(const Variables& variables) {
  const Reader read(variables, "PMI");
  const std::string kAdvice =
      "use mpirun of Open MPI, torchrun or srun, or set QUERN_RANK and QUERN_WORLD_SIZE";
  if (!read.has("PMI_RANK", "PMI_SIZE")) {
    const std::optional<std::string> rank = read.text("PMIX_RANK");
    // Slurm sets it for one rank too, and says so elsewhere.
    if (!rank || read.text("SLURM_STEP_ID")) return std::nullopt;
    read.refuse(cat("PMIX_RANK is ", *rank, ", but the number of ranks is not known; ", kAdvice));
  }
  RankPlace place =
      read_numbers(read, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  complete_local(place, true);
  place.may_be_bound = true;
  const std::string job = read.text_or("PMIX_NAMESPACE", "");
  if (on_one_machine(place) && !job.empty()) use_own_store(place, read, cat("pmi-", job));
  return place;
}

std::optional<RankPlace> of_launcher(const Variables& variables, const std::string& store) {
  if (const auto place = of_quern(variables, store)) return place;
  if (const auto place = of_torchrun(variables)) return place;
  if (const auto place = of_open_mpi(variables)) return place;
  if (const auto place = of_slurm(variables)) return place;
  return of_pmi(variables);
}

}  // namespace

Variables environment_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

RankPlace find_place(const Variables& variables, const std::string& store) {
  if (!store.empty()) check_store("--store", store);
  std::optional<RankPlace> place = of_launcher(variables, store);
  if (!place || place->size == 1) return {};
  if (!store.empty()) {
    place->store = store;
    place->own_store = false;
  }
  if (place->store.empty()) {
    throw UsageError(cat("ranks by ", place->launcher, ": rank ", place->rank, " of ", place->size,
                         " has no address to meet the others; give --store tcp:HOST:PORT, with "
                         "rank 0's host and a free port there, or --store file:FOLDER, an absent "
                         "folder that all ranks can see"));
  }
  return *place;
}

std::vector<std::string> variables_of(const RankPlace& place) {
  return {cat("QUERN_RANK=", place.rank),
          cat("QUERN_WORLD_SIZE=", place.size),
          cat("QUERN_LOCAL_RANK=", place.local_rank),
          cat("QUERN_LOCAL_SIZE=", place.local_size),
          cat("QUERN_STORE=", place.store),
          cat("QUERN_OWN_STORE=", place.own_store ? 1 : 0)};
}

void check_store(const std::string& name, const std::string& store) {
  const size_t colon = store.rfind(':');
  const bool file = store.starts_with("file:") && store.size() > 5;
  const bool named = store.starts_with("tcp:") && colon > 4;
  const std::optional<int64_t> port =
      named ? parse_number<int64_t>(std::string_view(store).substr(colon + 1)) : std::nullopt;
  if (file || (port && *port > 0 && *port <= kMaxPort)) return;
  throw UsageError(cat(name, " is '", store,
                       "', expected file:FOLDER or tcp:HOST:PORT, a port from 1 to ", kMaxPort));
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = std::min(list.find(']', i), list.size());
    host += list.substr(i + 1, std::min(list.find_first_of(",-]", i), end) - i - 1);
    i = end;
  }
  return host;
}

std::optional<int> tasks_on_node(const std::string& list, int node) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, end - at);
    const size_t times = part.find("(x");
    const std::optional<int64_t> tasks = parse_number<int64_t>(part.substr(0, times));
    const std::optional<int64_t> nodes =
        times == std::string::npos
            ? 1
            : parse_number<int64_t>(part.substr(times + 2, part.size() - times - 3));
    if (!tasks || !nodes || *tasks < 1 || *tasks > kMaxRanks) return std::nullopt;
    if (node < *nodes) return static_cast<int>(*tasks);
    node -= static_cast<int>(std::min<int64_t>(*nodes, node));
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace quern
