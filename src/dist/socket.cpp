#include "dist/socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/signal_block.h"

namespace quern {

namespace {

constexpr char kClosed[] = "the connection was closed";
constexpr char kLate[] = "no answer";

// Whether the socket is ready for `events` before the deadline.
bool wait_for(const Socket& socket, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{socket.get(), events, 0};
    const auto left = std::min<int64_t>(deadline.left().count(), 60000);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (deadline.passed() || (ready < 0 && errno != EINTR)) return false;
  }
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

Socket connect_to(const addrinfo& address, const Deadline& deadline, std::string& why_not) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    why_not = std::strerror(errno);
    return socket;
  }
  int error = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (wait_for(socket, POLLOUT, deadline)) {
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0) return socket;
  why_not = std::strerror(error);
  return Socket();
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

HostAndPort parse_tcp_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostAndPort place;
  if (address.starts_with("tcp:") && colon > 4) {
    place = {address.substr(4, colon - 4), address.substr(colon + 1)};
  }
  const bool bracketed = place.host.starts_with('[') && place.host.ends_with(']');
  if (bracketed) place.host = place.host.substr(1, place.host.size() - 2);
  const bool is_number = !place.port.empty() && place.port.size() <= 5 &&
                         place.port.find_first_not_of("0123456789") == std::string::npos;
  const int port = is_number ? std::stoi(place.port) : 0;
  const bool good = !place.host.empty() && port >= 1 && port <= 65535 &&
                    (bracketed || place.host.find(':') == std::string::npos);
  if (!good) {
    throw CommunicationError(
        cat("store address '", address, "', expected tcp:HOST:PORT with a port of 1 to 65535"));
  }
  return place;
}

// The system's name lookup has no time limit: a thread runs it, and is abandoned when it takes too
// long.
AddressList resolve(const HostAndPort& place, const Deadline& deadline, std::string& why_not) {
  using Answer = std::pair<AddressList, std::string>;
  const auto ask = [place](int flags) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    const int error = ::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found);
    return Answer(AddressList(error == 0 ? found : nullptr, &::freeaddrinfo),
                  error == 0 ? "" : ::gai_strerror(error));
  };
  if (Answer numeric = ask(AI_NUMERICHOST); numeric.first) return std::move(numeric.first);
  std::promise<Answer> promise;
  std::future<Answer> named = promise.get_future();
  {
    const SignalBlock inherited;
    std::thread([ask, promise = std::move(promise)]() mutable {
      promise.set_value(ask(0));
    }).detach();
  }
  if (named.wait_for(deadline.left()) != std::future_status::ready) {
    why_not = cat("no name server has answered for ", place.host);
    return {nullptr, &::freeaddrinfo};
  }
  Answer answer = named.get();
  if (!answer.first) why_not = answer.second;
  return std::move(answer.first);
}

Socket connect_to(const AddressList& list, const Deadline& deadline, std::string& why_not) {
  for (const addrinfo* i = list.get(); i; i = i->ai_next) {
    // An address that drops everything leaves time for the next one.
    const Deadline own(i->ai_next ? deadline.left() / 2 : deadline.left());
    if (Socket socket = connect_to(*i, own, why_not)) return socket;
  }
  return Socket();
}

bool send_all(const Socket& socket, const std::string& bytes, const Deadline& deadline,
              std::string& why_not) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (!would_block()) {
      why_not = std::strerror(errno);
      return false;
    } else if (!wait_for(socket, POLLOUT, deadline)) {
      why_not = kLate;
      return false;
    }
  }
  return true;
}

bool receive_all(const Socket& socket, std::string& bytes, size_t count, const Deadline& deadline,
                 std::string& why_not) {
  bytes.resize(count);
  for (size_t received = 0; received < count;) {
    const ssize_t n = ::recv(socket.get(), bytes.data() + received, count - received, 0);
    if (n > 0) {
      received += static_cast<size_t>(n);
    } else if (n == 0 || !would_block()) {
      why_not = n == 0 ? kClosed : std::strerror(errno);
      return false;
    } else if (!wait_for(socket, POLLIN, deadline)) {
      why_not = kLate;
      return false;
    }
  }
  return true;
}

}  // namespace quern
