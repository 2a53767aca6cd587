#include "dist/store.h"

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/deadline.h"
#include "dist/file_store.h"
#include "dist/tcp_store.h"

namespace quern {

std::string Store::get(const std::string& key) {
  if (auto value = find(key, limit_)) return *std::move(value);
  throw CommunicationError(
      cat(address_, ": get of '", key, "': no rank set it within ", in_words(limit_)));
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
