#include "dist/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "dist/communicator.h"
#include "dist/host_name.h"

namespace quern {

namespace {

std::string text(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> out{};
  ::inet_ntop(AF_INET, &address.sin_addr, out.data(), out.size());
  return out.data();
}

// Connecting a datagram socket sends nothing: it selects the route. 192.0.2.1 is reserved for
// documentation (RFC 5737), so only the default route leads there.
std::string default_route_address() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_in to{}, own{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);
  ::inet_pton(AF_INET, "192.0.2.1", &to.sin_addr);
  socklen_t size = sizeof own;
  const bool found = ::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  ::close(fd);
  return found ? text(own) : std::string();
}

}  // namespace

std::string routed_address() {
  std::string found = default_route_address();
  if (!found.empty()) return found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
    for (const ifaddrs* i = first; i && found.empty(); i = i->ifa_next) {
      const bool usable = (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK);
      if (usable && i->ifa_addr && i->ifa_addr->sa_family == AF_INET) {
        found = text(*reinterpret_cast<const sockaddr_in*>(i->ifa_addr));
      }
    }
  }
  if (found.empty()) throw CommunicationError("this machine has no IPv4 address that others reach");
  return found;
}

std::string listening_address(Store& store, const std::string& key, int rank, int size) {
  // Containers of a machine have one id but several names, and each has its own loopback address.
  const std::string own = cat(host_name(), ' ', machine_id());
  store.set(cat(key, '/', rank), own);
  bool one_host = true;
  for (int i = 0; i < size; ++i) one_host &= store.get(cat(key, '/', i)) == own;
  return one_host ? "127.0.0.1" : routed_address();
}

}  // namespace quern
