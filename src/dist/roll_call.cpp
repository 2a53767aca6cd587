#include "dist/roll_call.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "dist/deadline.h"
#include "dist/host_name.h"

namespace quern {

RollCall::RollCall(std::shared_ptr<Store> store, int rank, int size, const std::string& group)
    : store_(std::move(store)), rank_(rank), size_(size), group_(group) {
  constexpr char kHosts[] = "hosts";
  const auto host_of = [&](int other) { return cat("host/", other); };
  if (rank == 0) {
    std::string all = host_name();
    for (int other = 1; other < size; ++other) all += cat("\n", store_->get(host_of(other)));
    store_->set(kHosts, all);
  } else {
    store_->set(host_of(rank), host_name());
  }
  std::istringstream lines(store_->get(kHosts));
  for (std::string host; std::getline(lines, host);) hosts_.push_back(host);
  QUERN_CHECK(std::ssize(hosts_) == size, "the store's ", kHosts, " has ", hosts_.size(),
              " lines, expected ", size);
}

std::string RollCall::name_of(int rank) const {
  return cat("rank ", rank, " of ", size_, " on ", hosts_[static_cast<size_t>(rank)]);
}

std::string RollCall::key_of(const char* kind, int rank) const {
  return cat(kind, '/', group_, '/', rank);
}

void RollCall::report_failure(const std::string& reason,
                              std::chrono::milliseconds limit) const noexcept {
  try {
    store_->put(key_of("failed", 0), failure_text(name_of(rank_), reason), limit);
  } catch (const std::exception&) {  // another rank has failed before, or the store is gone
  }
  mark_as_read(limit);
}

std::string RollCall::reported_failure(std::chrono::milliseconds limit,
                                       std::chrono::milliseconds of_readers) const noexcept {
  try {
    const std::optional<std::string> found = store_->find(key_of("failed", 0), limit);
    if (!found) return "";
    mark_as_read(of_readers);
    return *found;
  } catch (const std::exception&) {  // the store is gone
    return "";
  }
}

// Where the store ends with this rank, waits for the others.
void RollCall::mark_as_read(std::chrono::milliseconds limit) const noexcept {
  const Deadline deadline(limit);
  try {
    store_->put(key_of("read", rank_), "", limit);
    for (int other = 0; other < size_ && store_->ends_here(); ++other) {
      if (other != rank_) store_->find(key_of("read", other), deadline.left());
    }
  } catch (const std::exception&) {  // the store is gone
  }
}

std::string RollCall::answer(const std::string& call,
                             std::chrono::milliseconds limit) const noexcept {
  constexpr int kMostNamed = 4;
  constexpr std::chrono::milliseconds kOneAnswer{100};  // also after others have used up the time
  const Deadline deadline(limit);
  std::string text;
  int named = 0;
  try {
    store_->put(key_of("late", rank_), call, limit);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      const std::optional<std::string> found =
          store_->find(key_of("late", other), std::max(deadline.left(), kOneAnswer));
      if (found == call || ++named > kMostNamed) continue;
      text += cat(text.empty() ? "" : "; ", name_of(other),
                  found ? cat(" waits in ", *found) : " does not wait in it, or came later");
    }
  } catch (const std::exception& error) {
    return cat(text.empty() ? kUnknown : text, "; ", error.what());
  }
  if (named > kMostNamed) text += cat("; and ", named - kMostNamed, " more");
  return text.empty() ? "every rank waits in it: a GPU or a link hangs" : text;
}

}  // namespace quern
