#include "dist/tcp_store.h"

#include <optional>
#include <thread>

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/socket.h"
#include "dist/store_entry.h"
#include "dist/store_server.h"

namespace quern {

namespace {

using namespace store_wire;
using std::chrono::milliseconds;

constexpr char kOpening[] = "cannot be reached";

class TcpStore final : public Store {
 public:
  explicit TcpStore(const StoreOptions& options)
      : Store(options.address, options.limit), addresses_(nullptr, &::freeaddrinfo) {
    const Deadline deadline(limit());
    find_addresses(deadline);
    if (options.rank == 0) server_.emplace(address(), addresses_, limit());
    ask(StoreOp::ping, "", "", kOpening, limit(), limit() - deadline.left());
  }

  void put(const std::string& key, const std::string& value, milliseconds limit) override {
    check_store_entry(address(), key, value);
    ask(StoreOp::set, key, value, cat("set of '", key, "'"), limit);
  }

  std::optional<std::string> find(const std::string& key, milliseconds limit) override {
    check_store_entry(address(), key, {});
    return ask(StoreOp::get, key, "", cat("get of '", key, "'"), limit);
  }

  bool ends_here() const override { return server_.has_value(); }

 private:
  [[noreturn]] void fail(const std::string& title, const std::string& reason) const {
    throw CommunicationError(cat(address(), ": ", title, ": ", reason));
  }
  // None only for a get that waits for a key.
  std::optional<std::string> ask(StoreOp op, const std::string& key, const std::string& value,
                                 const std::string& title, milliseconds limit,
                                 milliseconds spent = {}) const;
  std::optional<std::string> receive(const Socket& socket, const Deadline& deadline,
                                     const std::string& title, std::string& why_not) const;

  void find_addresses(const Deadline& deadline);

  AddressList addresses_;
  std::optional<StoreServer> server_;
};

// Once: a name server's answers may take longer than a request.
void TcpStore::find_addresses(const Deadline& deadline) {
  const HostAndPort place = parse_tcp_address(address());
  std::string reason;
  while (!(addresses_ = resolve(place, deadline, reason))) {
    if (deadline.passed()) {
      fail(kOpening, cat("no address within ", in_words(limit()), ": ", reason));
    }
    std::this_thread::sleep_for(std::min(milliseconds(100), deadline.left()));
  }
}

// A connection for each request, again until the limit: rank 0 may start later, and repeating a
// request changes nothing. `spent`: how much of the limit has passed.
std::optional<std::string> TcpStore::ask(StoreOp op, const std::string& key,
                                         const std::string& value, const std::string& title,
                                         milliseconds limit, milliseconds spent) const {
  const Deadline deadline(limit - spent);
  std::string reason;
  for (milliseconds pause{5};; pause = std::min(2 * pause, milliseconds(200))) {
    const Socket socket = connect_to(addresses_, deadline, reason);
    if (socket && send_all(socket, request(op, key, value), deadline, reason)) {
      if (auto answer = receive(socket, deadline, title, reason)) return answer;
      if (op == StoreOp::get && deadline.passed()) return {};
    }
    if (deadline.passed()) {
      fail(title, cat("rank 0's store did not answer within ", in_words(limit), ": ", reason));
    }
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
  }
}

std::optional<std::string> TcpStore::receive(const Socket& socket, const Deadline& deadline,
                                             const std::string& title, std::string& why_not) const {
  std::string head, value;
  if (!receive_all(socket, head, kReplyHead, deadline, why_not)) return {};
  const uint32_t size = number_at(head, kMarkBytes + 1);
  if (!has_mark(head) || size > kMostValueBytes) {
    fail(title, "another program answers at this address");
  }
  if (!receive_all(socket, value, size, deadline, why_not)) return {};
  switch (static_cast<StoreStatus>(head[kMarkBytes])) {
    case StoreStatus::done: return value;
    case StoreStatus::other_value: fail(title, "it has another value already");
    case StoreStatus::full: fail(title, "the store is full");
  }
  fail(title, "another program answers at this address");
}

}  // namespace

std::unique_ptr<Store> open_tcp_store(const StoreOptions& options) {
  return std::make_unique<TcpStore>(options);
}

}  // namespace quern
