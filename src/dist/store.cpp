#include "dist/store.h"

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/file_store.h"

namespace quern {

std::unique_ptr<Store> open_store(const StoreOptions& options) {
  QUERN_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "store: rank ",
              options.rank, " of ", options.size, ", expected a rank below the number of ranks");
  const std::string& address = options.address;
  if (address.starts_with("file:") && address.size() > 5) return open_file_store(options);
  throw CommunicationError(cat("store address '", address, "', expected file:FOLDER"));
}

}  // namespace quern
