// The store that rank 0 serves by TCP.
#pragma once

#include "dist/store.h"

namespace quern {

std::unique_ptr<Store> open_tcp_store(const StoreOptions& options);

}  // namespace quern
