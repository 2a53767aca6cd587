// The address by which other machines reach this one.
#pragma once

#include <string>

namespace quern {

// The IPv4 address of the default route's interface, else that of the first interface that is up
// and not loopback. Throws CommunicationError when there is none.
std::string routed_address();

}  // namespace quern
