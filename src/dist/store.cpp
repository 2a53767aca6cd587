#include "dist/store.h"

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/deadline.h"
#include "dist/file_store.h"
#include "dist/tcp_store.h"

namespace quern {

namespace {

constexpr char kFailed[] = "failed";

}  // namespace

std::string Store::get(const std::string& key) {
  const Deadline deadline(limit_);
  bool answers = true;
  do {  // waits in parts and asks in between; a slow or lost store gets the rest of the time
    const auto left = deadline.left();
    const bool last = !answers || left <= limit_ / 4;
    std::optional<std::string> value;
    try {
      value = find(key, last ? left : limit_ / 8);
    } catch (const CommunicationError&) {
      if (last) throw;
      answers = false;
      continue;
    }
    if (value) return *std::move(value);
    const std::string reason =
        reported_failure(limit_ / 50);  // brief: the key may be set meanwhile
    if (!reason.empty()) throw CommunicationError(reason);
  } while (!deadline.passed());
  throw CommunicationError(
      cat(address_, ": get of '", key, "': no rank set it within ", in_words(limit_)));
}

std::string Store::report_failure(const std::string& reason) {
  try {
    put(kFailed, reason, limit_ / 10);
    return reason;
  } catch (const CommunicationError&) {  // another rank has failed before, or the store is gone
    const std::string first = reported_failure(limit_ / 10);
    return first.empty() ? reason : first;
  }
}

std::string Store::reported_failure(std::chrono::milliseconds limit) {
  try {
    return find(kFailed, limit).value_or("");
  } catch (const CommunicationError&) {  // late, or gone
    return "";
  }
}

std::unique_ptr<Store> open_store(const StoreOptions& options) {
  QUERN_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "store: rank ",
              options.rank, " of ", options.size, ", expected a rank below the number of ranks");
  const std::string& address = options.address;
  if (address.starts_with("file:") && address.size() > 5) return open_file_store(options);
  if (address.starts_with("tcp:")) return open_tcp_store(options);
  throw CommunicationError(
      cat("store address '", address, "', expected file:FOLDER or tcp:HOST:PORT"));
}

}  // namespace quern
