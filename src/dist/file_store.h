// A store in a folder that all ranks see: one file a key.
#pragma once

#include "dist/store.h"

namespace quern {

std::unique_ptr<Store> open_file_store(const StoreOptions& options);

}  // namespace quern
