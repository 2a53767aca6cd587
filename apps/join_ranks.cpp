#include "join_ranks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/build_info.h"
#include "base/counted.h"
#include "base/error.h"
#include "config/config_print.h"
#include "dist/deadline.h"
#include "dist/gloo.h"
#include "dist/host_name.h"
#include "dist/nccl.h"
#include "dist/rank_team.h"
#include "dist/store.h"
#include "io/descriptor.h"
#include "io/folder.h"
#include "supervisor.h"
#include "terminal.h"

namespace quern {

namespace {

namespace fs = std::filesystem;

// The folder for a store that find_place has named.
class OwnFolder {
 public:
  explicit OwnFolder(const RankPlace& place) {
    if (!place.own_store) return;
    path_ = place.store.substr(std::strlen("file:"));
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail_with_errno(path_, "mkdir");
    struct stat info {};
    if (lstat(path_.c_str(), &info) != 0) fail_with_errno(path_, "lstat");
    QUERN_CHECK(S_ISDIR(info.st_mode) && info.st_uid == getuid(), path_.string(),
                ": is not a folder of this user, so ranks cannot meet there; give --store");
  }
  void remove_at_the_end() { removes_ = !path_.empty(); }
  ~OwnFolder() {
    std::error_code ignored;
    if (removes_) remove_tree(path_, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

 private:
  fs::path path_;
  bool removes_ = false;
};

std::shared_ptr<Store> open_store_of(const RankPlace& place, std::chrono::milliseconds limit) {
  return open_store({.address = place.store,
                     .rank = place.rank,
                     .size = place.size,
                     .limit = limit,
                     .own_folder = place.own_store});
}

std::string rank_of(const RankPlace& place) {
  return cat("rank ", place.rank, " of ", place.size);
}

std::string this_process() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return cat("process ", getpid(), " on ", host_name(), " at ", now);
}

constexpr char kNoStart[] = "no start";           // the first reason why the ranks cannot start
constexpr std::chrono::milliseconds kShort{500};  // for an answer of the store that is there

std::atomic<bool> joining{false};  // this process has called join_ranks

// A rank that is there twice ends all, unless they have started already.
void announce(Store& store, const RankPlace& place) {
  const std::string key = cat("place/", place.rank), self = this_process();
  try {
    store.set(key, self);
  } catch (const CommunicationError& error) {
    std::string reason = error.what();
    try {
      if (const auto first = store.find(key, kShort)) {
        reason = cat("rank ", place.rank, " is there twice: ", *first, ", and ", self);
        store.put(kNoStart, reason, kShort);
      }
    } catch (const CommunicationError&) {  // the store is gone, or another reason was there before
    }
    throw CommunicationError(cat(rank_of(place), ": cannot enter its place: ", reason));
  }
}

// Size, device and build of a rank, which must be equal on all.
std::string start_text(const RankPlace& place, Device device) {
  std::string kind = "CPUs";
  if (device.is_cuda()) {
    std::string why_not;
    kind = nccl_available(&why_not) ? cat("GPUs with ", nccl_version())
                                    : cat("GPUs without NCCL (", why_not, ")");
  }
  return cat(counted(place.size, "rank"), " on ", kind, " by quern ", build_info().version, " (",
             build_info().commit, ")");
}

// Rank 0 compares the ranks' start texts and tells all of them the first difference, or why a rank
// cannot start: empty if none. `seen`: the ranks from 1 that have started.
std::string find_difference(Store& store, const RankPlace& place, const std::string& own,
                            std::chrono::milliseconds limit, int& seen) {
  constexpr std::chrono::milliseconds kPause{100};
  const Deadline deadline(limit);
  std::optional<std::string> no_start;
  for (seen = 0; seen + 1 < place.size; ++seen) {
    const int rank = seen + 1;
    std::optional<std::string> other;
    while (!other && !no_start && !deadline.passed()) {
      other = store.find(cat("start/", rank), kPause);
      if (!other) no_start = store.find(kNoStart, kPause);
    }
    if (no_start) break;
    if (!other) {
      return cat("rank ", rank, " has not started: ", place.store, ": no entry within ",
                 in_words(limit));
    }
    if (*other == own) continue;
    ++seen;
    return cat("rank 0 is one of ", own, ", but rank ", rank, " is one of ", *other);
  }
  if (!no_start) no_start = store.find(kNoStart, kPause / 10);
  if (no_start) seen = place.size - 1;
  return no_start.value_or("");
}

// The store may end with rank 0: it waits until the ranks from 1 to `last` have read why they end.
void await_readers(Store& store, const RankPlace& place, int last,
                   std::chrono::milliseconds limit) {
  try {
    if (place.rank > 0) return store.put(cat("heard/", place.rank), "", kShort);
    const Deadline deadline(limit);
    for (int rank = 1; rank <= last; ++rank) store.find(cat("heard/", rank), deadline.left());
  } catch (const CommunicationError&) {  // the other is gone already
  }
}

// Throws the same error on every rank that has started, unless all have, alike.
void check_start(Store& store, const RankPlace& place, Device device,
                 std::chrono::milliseconds limit) {
  const std::string own = start_text(place, device);
  std::string error;
  int seen = 0;
  if (place.rank == 0) {
    error = find_difference(store, place, own, limit, seen);
    store.set("start", error);
  } else {
    store.set(cat("start/", place.rank), own);
    try {
      error = store.get("start");
    } catch (const CommunicationError& late) {
      error = cat("rank 0 has not started, or waits for another rank: ", late.what());
    }
  }
  if (error.empty()) return;
  await_readers(store, place, seen, std::min(2 * kShort, limit / 4));
  throw CommunicationError(cat(rank_of(place), ": ", error));
}

// A rank that cannot make its part of the group ends the others with its error.
std::unique_ptr<Communicator> make_group(const std::shared_ptr<Store>& store,
                                         const RankPlace& place, Device device,
                                         std::chrono::milliseconds limit) {
  // The rest of the limit is for the reason, and the end of the process.
  const auto wait = device.is_cuda() ? limit * 3 / 5 : limit * 4 / 5;
  const auto tell = [&](const std::string& own) {
    const std::string first = store->report_failure(own);
    await_readers(*store, place, place.size - 1, std::min(4 * kShort, limit / 5));
    return first;
  };
  try {
    return device.is_cuda() ? nccl_group(store, place.rank, place.size, wait)
                            : gloo_group(*store, place.rank, place.size, wait);
  } catch (const CommunicationError& error) {
    const std::string first = tell(error.what());
    if (first == error.what() && first.starts_with(rank_of(place))) throw;
    throw CommunicationError(cat(rank_of(place), ": ", first));
  } catch (const std::exception& error) {
    tell(failure_text(rank_text(place.rank, place.size), error.what()));
    throw;
  }
}

// The address of --store; empty without one. The arguments may not be valid.
std::string store_flag(const Arguments& args) {
  constexpr std::string_view kFlag = "--store";
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == kFlag && i + 1 < args.size()) return args[i + 1];
    if (args[i].starts_with(cat(kFlag, "="))) return args[i].substr(kFlag.size() + 1);
  }
  return "";
}

// One rank if the launcher's variables are wrong.
RankPlace place_of(const Arguments& args) {
  try {
    return find_place(environment_variables(), store_flag(args));
  } catch (const UsageError&) {
    return {};
  }
}

// Rank 0 writes what check_start writes, and the other ranks what it reads.
void tell_why_not(const RankPlace& place, const std::string& error) noexcept {
  constexpr std::chrono::milliseconds kLimit{5000};
  try {
    OwnFolder folder(place);
    const std::shared_ptr<Store> store = open_store_of(place, kLimit);
    announce(*store, place);
    if (place.rank == 0) folder.remove_at_the_end();
    const std::string reason = failure_text(rank_text(place.rank, place.size), error);
    try {
      store->put(place.rank == 0 ? "start" : kNoStart, reason, kLimit);
    } catch (const CommunicationError&) {  // another rank was faster
    }
    await_readers(*store, place, place.size - 1, kLimit);
  } catch (const std::exception&) {  // there is no way to tell them
  }
}

// The configuration without the keys that may differ between machines.
std::string common_configuration(Config config) {
  config.compute.threads = 0;
  config.compute.memory_limit = 0;
  return config_toml(config);
}

}  // namespace

int as_a_rank(const Arguments& args, const std::function<int()>& command) {
  try {
    return command();
  } catch (const Error& error) {
    const RankPlace place = joining ? RankPlace() : place_of(args);
    if (place.size == 1) throw;
    print_error(error.what());  // before the others, which may come later
    tell_why_not(place, error.what());
    return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;  // as main does
  }
}

std::unique_ptr<Communicator> join_ranks(const RankPlace& place, Device device,
                                         const Config& config) {
  joining = true;
  const std::chrono::milliseconds limit = std::chrono::seconds(config.parallel.comm_limit);
  OwnFolder folder(place);
  const std::shared_ptr<Store> store = open_store_of(place, limit);
  announce(*store, place);
  if (place.rank == 0) folder.remove_at_the_end();  // not a second rank 0
  check_start(*store, place, device, limit * 4 / 5);
  auto ranks = make_group(store, place, device, limit);
  ranks->set_on_stuck([](const std::string& failure, bool own) {
    print_error(failure);
    std::_Exit(own ? 1 : code_of_follower());
  });
  RankTeam(ranks.get()).check_alike(common_configuration(config), "their configuration");
  return ranks;
}

}  // namespace quern
