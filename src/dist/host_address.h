// The address at which other ranks reach this one.
#pragma once

#include <string>

#include "dist/store.h"

namespace quern {

// The IPv4 address of the default route's interface, else that of the first interface that is up
// and not loopback. Throws CommunicationError when there is none.
std::string routed_address();

// The loopback address when all ranks are on this machine, else routed_address(). Every rank calls
// this; the ranks' host names and machine ids are in the store under KEY/RANK.
std::string listening_address(Store& store, const std::string& key, int rank, int size);

}  // namespace quern
