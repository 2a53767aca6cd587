// TCP sockets of the store: non-blocking, and closed by their owner.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>
#include <utility>

#include "dist/deadline.h"

namespace quern {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct HostAndPort {
  std::string host, port;
};
// From "tcp:HOST:PORT"; an IPv6 address stands in brackets. Throws CommunicationError.
HostAndPort parse_tcp_address(const std::string& address);

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
// Empty, with the reason in `why_not`, when the host is unknown or no name server answers in time.
AddressList resolve(const HostAndPort& place, const Deadline& deadline, std::string& why_not);

// Each returns false when the deadline passes or the peer is gone, with the reason in `why_not`.
Socket connect_to(const AddressList& list, const Deadline& deadline, std::string& why_not);
bool send_all(const Socket& socket, const std::string& bytes, const Deadline& deadline,
              std::string& why_not);
bool receive_all(const Socket& socket, std::string& bytes, size_t count, const Deadline& deadline,
                 std::string& why_not);

}  // namespace quern
