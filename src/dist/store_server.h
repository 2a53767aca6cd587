// The server of a TCP store: a thread that holds the keys and answers one request per connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dist/socket.h"

namespace quern {

// A request is kMark, a StoreOp, the sizes of key and value (32 bits, network order), key and
// value. The reply is kMark, a StoreStatus, the size of the value and the value. That of `get`
// comes when some rank has set the key. Anything else closes the connection.
enum class StoreOp : uint8_t { ping, set, get };
enum class StoreStatus : uint8_t { done, other_value, full };

namespace store_wire {
inline constexpr char kMark[] = "QRN1";
inline constexpr size_t kMarkBytes = 4, kRequestHead = kMarkBytes + 9, kReplyHead = kMarkBytes + 5;

std::string request(StoreOp op, const std::string& key, const std::string& value);
std::string reply(StoreStatus status, const std::string& value);
uint32_t number_at(const std::string& bytes, size_t offset);
bool has_mark(const std::string& bytes);
}  // namespace store_wire

class StoreServer {
 public:
  // Binds tcp:HOST:PORT, which has these addresses, and starts the thread. Throws
  // CommunicationError with the address. `limit`: how long a client may take to send its request or
  // to receive the reply.
  StoreServer(const std::string& address, const AddressList& addresses,
              std::chrono::milliseconds limit);
  ~StoreServer();  // ends the thread; clients that wait lose their connection
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace quern
