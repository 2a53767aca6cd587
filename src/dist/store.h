// Rendezvous: a key-value store that all ranks of a training share to find each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace quern {

// Keys are written once. Safe to use from several threads.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until some rank has set the key. Throws CommunicationError, with the key, when none did
  // within the time limit or the store cannot be reached.
  virtual std::string get(const std::string& key) = 0;
};

// `address`: "file:FOLDER", a folder that all ranks see, made by the first; or "tcp:HOST:PORT",
// where rank 0 serves the store unless the port belongs to a launcher (`hosted` then: no rank
// binds the port). Throws CommunicationError with the address and the reason.
struct StoreOptions {
  std::string address;
  int rank = 0, size = 1;
  std::chrono::milliseconds limit{10000};
};
std::unique_ptr<Store> open_store(const StoreOptions& options);

}  // namespace quern
