// Rendezvous: a key-value store that all ranks of a training share to find each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace quern {

// Each key has one writer and one value: to set it again to another value is an error. Safe to use
// from several threads.
class Store {
 public:
  virtual ~Store() = default;
  // Keys have 1 to 1024 bytes, values at most 1 MiB.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until some rank has set the key. Throws CommunicationError, with the key, when none did
  // within the time limit or the store cannot be reached.
  virtual std::string get(const std::string& key) = 0;
};

// `address` is "file:FOLDER", a folder that all ranks see, new for each training and made by the
// first; or "tcp:HOST:PORT", where rank 0 serves the store as long as its Store lives. The other
// ranks wait for it until the limit. Throws CommunicationError with the address and the reason.
struct StoreOptions {
  std::string address;
  int rank = 0, size = 1;
  std::chrono::milliseconds limit{10000};
};
std::unique_ptr<Store> open_store(const StoreOptions& options);

}  // namespace quern
