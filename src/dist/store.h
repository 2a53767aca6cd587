// Rendezvous: a key-value store that all ranks of a training share to find each other.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace quern {

// Each key has one value: to set it again to another value is an error. Safe to use from several
// threads.
class Store {
 public:
  virtual ~Store() = default;
  // Keys have 1 to 80 bytes, values at most 1 MiB. Tries for up to `limit`.
  virtual void put(const std::string& key, const std::string& value,
                   std::chrono::milliseconds limit) = 0;
  // Waits until some rank has set the key; none: no rank did within `limit`. Throws
  // CommunicationError, with the key, when the store cannot be reached.
  virtual std::optional<std::string> find(const std::string& key,
                                          std::chrono::milliseconds limit) = 0;
  // Whether the other ranks lose the store with this object.
  virtual bool ends_here() const { return false; }
  // put() and find() within the store's own limit. get() throws when no rank has set the key, and
  // before that when a rank has reported a failure: mostly within an eighth of the limit.
  void set(const std::string& key, const std::string& value) { put(key, value, limit_); }
  std::string get(const std::string& key);
  // Reports that this rank cannot start. Returns the first reason reported, which get() throws.
  std::string report_failure(const std::string& reason);
  // The first reason reported; empty: none, or the store has not answered within `limit`.
  std::string reported_failure(std::chrono::milliseconds limit);

 protected:
  Store(std::string address, std::chrono::milliseconds limit)
      : address_(std::move(address)), limit_(limit) {}
  const std::string& address() const { return address_; }
  std::chrono::milliseconds limit() const { return limit_; }

 private:
  std::string address_;
  std::chrono::milliseconds limit_;
};

// `address` is "file:FOLDER" or "tcp:HOST:PORT". All ranks must see the folder; the first one
// makes it, and each training needs a new one. Over TCP rank 0 serves the store during the lifetime
// of its Store. Ranks wait for folder or server until the limit. Throws CommunicationError with the
// address and the reason.
struct StoreOptions {
  std::string address;
  int rank = 0, size = 1;
  std::chrono::milliseconds limit{10000};
  bool own_folder = false;  // which may be removed once all have joined: set() makes it again
};
std::unique_ptr<Store> open_store(const StoreOptions& options);

}  // namespace quern
