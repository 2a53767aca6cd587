#include "dist/store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/signal_block.h"
#include "dist/socket.h"
#include "dist/store_entry.h"

namespace quern {

namespace store_wire {

static std::string bytes_of(uint32_t number) {
  const uint32_t network = htonl(number);
  return {reinterpret_cast<const char*>(&network), sizeof network};
}

std::string request(StoreOp op, const std::string& key, const std::string& value) {
  return kMark + std::string(1, static_cast<char>(op)) +
         bytes_of(static_cast<uint32_t>(key.size())) +
         bytes_of(static_cast<uint32_t>(value.size())) + key + value;
}

std::string reply(StoreStatus status, const std::string& value) {
  return kMark + std::string(1, static_cast<char>(status)) +
         bytes_of(static_cast<uint32_t>(value.size())) + value;
}

uint32_t number_at(const std::string& bytes, size_t offset) {
  uint32_t network = 0;
  std::memcpy(&network, bytes.data() + offset, sizeof network);
  return ntohl(network);
}

bool has_mark(const std::string& bytes) {
  return bytes.compare(0, kMarkBytes, kMark) == 0;
}

}  // namespace store_wire

namespace {

using namespace store_wire;

constexpr size_t kMostConnections = 1024, kMostStoredBytes = size_t{64} << 20;

struct Connection {
  Socket socket;
  Deadline deadline;  // of the request, then of the reply
  std::string in = {}, out = {};
  size_t sent = 0;
  std::string awaited = {};  // the key of a `get` that waits

  bool receive();  // false: to be closed
  bool send();
};

// The request is complete when it has the size that its head gives; more bytes are an error.
bool Connection::receive() {
  char block[65536];
  const ssize_t n = ::recv(socket.get(), block, sizeof block, 0);
  if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
  if (!awaited.empty() || !out.empty()) return false;
  in.append(block, static_cast<size_t>(n));
  if (in.size() < kRequestHead) return has_mark(in) || in.size() < kMarkBytes;
  const size_t key = number_at(in, kMarkBytes + 1), value = number_at(in, kMarkBytes + 5);
  return has_mark(in) && static_cast<uint8_t>(in[kMarkBytes]) <= 2 && key <= kMostKeyBytes &&
         value <= kMostValueBytes && in.size() <= kRequestHead + key + value;
}

bool Connection::send() {
  const ssize_t n = ::send(socket.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  sent += static_cast<size_t>(n);
  return sent < out.size();
}

std::string explain_bind(const HostAndPort& place, int error) {
  if (error == EADDRINUSE) return cat("port ", place.port, " is in use by another program");
  if (error == EADDRNOTAVAIL) {
    return cat(place.host, " is not an address of this machine, where rank 0 runs");
  }
  return std::strerror(error);
}

// Some systems map a machine's own name to 127.0.1.1, where no other machine could connect.
bool is_loopback(const addrinfo& address) {
  if (address.ai_family != AF_INET) return false;
  const auto* in = reinterpret_cast<const sockaddr_in*>(address.ai_addr);
  return ntohl(in->sin_addr.s_addr) >> 24 == 127;
}

Socket listen_at(const std::string& address, const AddressList& list) {
  const HostAndPort place = parse_tcp_address(address);
  std::string reason;
  for (const addrinfo* i = list.get(); i; i = i->ai_next) {
    Socket socket(::socket(i->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) {
      reason = std::strerror(errno);
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const bool is_name = place.host.find_first_not_of("0123456789.") != std::string::npos;
    sockaddr_storage bound{};
    std::memcpy(&bound, i->ai_addr, i->ai_addrlen);
    if (is_loopback(*i) && is_name && place.host != "localhost") {
      reinterpret_cast<sockaddr_in&>(bound).sin_addr.s_addr = htonl(INADDR_ANY);
    }
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&bound), i->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    const int error = errno;
    reason = explain_bind(place, error);
    if (error == EADDRINUSE) break;  // the others would connect to that program
  }
  throw CommunicationError(cat(address, ": rank 0 cannot serve the store: ", reason));
}

}  // namespace

class StoreServer::Loop {
 public:
  Loop(const std::string& address, const AddressList& addresses, std::chrono::milliseconds limit)
      : limit_(limit),
        listener_(listen_at(address, addresses)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    QUERN_CHECK(wake_, address, ": eventfd: ", std::strerror(errno));
    const SignalBlock inherited;
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void run();
  void accept();
  bool serve(Connection& connection, short events);
  void answer(Connection& connection);
  void reply_to(Connection& connection, StoreStatus status, const std::string& value = {});
  StoreStatus store(const std::string& key, const std::string& value);

  std::chrono::milliseconds limit_;
  Socket listener_, wake_;
  std::list<Connection> connections_;
  std::unordered_map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;
  std::thread thread_;
};

void StoreServer::Loop::run() {
  for (;;) {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    int64_t pause = -1;  // until the first deadline; waiting gets have none
    for (const Connection& c : connections_) {
      const short events = c.out.empty() ? POLLIN : POLLOUT;
      entries.push_back({c.socket.get(), events, 0});
      const int64_t left = std::min<int64_t>(c.deadline.left().count() + 1, 60000);
      if (c.awaited.empty()) pause = pause < 0 ? left : std::min(pause, left);
    }
    if (::poll(entries.data(), entries.size(), static_cast<int>(pause)) < 0) continue;
    if (entries[0].revents) return;
    auto entry = entries.begin() + 2;
    for (auto c = connections_.begin(); c != connections_.end(); ++entry) {
      const bool late = c->awaited.empty() && c->deadline.passed();
      c = late || !serve(*c, entry->revents) ? connections_.erase(c) : std::next(c);
    }
    if (entries[1].revents) accept();
  }
}

void StoreServer::Loop::accept() {
  Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // poll would return at once
  }
  if (socket && connections_.size() < kMostConnections) {
    connections_.push_back({std::move(socket), Deadline(limit_)});
  }
}

bool StoreServer::Loop::serve(Connection& connection, short events) {
  if (events == 0) return true;
  if (!connection.out.empty()) return connection.send();
  if (!connection.receive()) return false;
  if (connection.in.size() < kRequestHead) return true;
  const size_t size = kRequestHead + number_at(connection.in, kMarkBytes + 1) +
                      number_at(connection.in, kMarkBytes + 5);
  if (connection.in.size() == size && connection.awaited.empty()) answer(connection);
  return true;
}

void StoreServer::Loop::answer(Connection& connection) {
  const std::string& in = connection.in;
  const size_t key_size = number_at(in, kMarkBytes + 1);
  const std::string key = in.substr(kRequestHead, key_size);
  switch (static_cast<StoreOp>(in[kMarkBytes])) {
    case StoreOp::ping: return reply_to(connection, StoreStatus::done);
    case StoreOp::set: return reply_to(connection, store(key, in.substr(kRequestHead + key_size)));
    case StoreOp::get: {
      const auto value = values_.find(key);
      if (value != values_.end()) {
        return reply_to(connection, StoreStatus::done, value->second);
      }
      connection.awaited = key;
    }
  }
}

void StoreServer::Loop::reply_to(Connection& connection, StoreStatus status,
                                 const std::string& value) {
  connection.awaited.clear();
  connection.deadline = Deadline(limit_);
  connection.out = reply(status, value);
}

StoreStatus StoreServer::Loop::store(const std::string& key, const std::string& value) {
  const auto old = values_.find(key);
  if (old != values_.end()) {
    return old->second == value ? StoreStatus::done : StoreStatus::other_value;
  }
  if (stored_bytes_ + key.size() + value.size() > kMostStoredBytes) return StoreStatus::full;
  stored_bytes_ += key.size() + value.size();
  values_[key] = value;
  for (Connection& c : connections_) {
    if (c.awaited == key) reply_to(c, StoreStatus::done, value);
  }
  return StoreStatus::done;
}

StoreServer::StoreServer(const std::string& address, const AddressList& addresses,
                         std::chrono::milliseconds limit)
    : loop_(std::make_unique<Loop>(address, addresses, limit)) {}

StoreServer::~StoreServer() = default;

}  // namespace quern
