// Checks that all ranks were started with the same configuration and build.
#pragma once

#include <string>

#include "dist/communicator.h"
#include "dist/store.h"

namespace quern {

// Compares `text` of all ranks. When they differ, every rank throws the same CommunicationError: it
// names the first rank that differs from rank 0, and the first line. `key` names the text in the
// store and the message: "configuration", "build".
void check_agreement(Communicator& ranks, Store& store, const std::string& key,
                     const std::string& text);

}  // namespace quern
