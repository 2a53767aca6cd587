// The optimizer of a configuration.
#pragma once

#include <memory>

#include "config/config.h"
#include "dist/communicator.h"
#include "optim/muon.h"

namespace quern {

// The optimizer named in [optimizer], with the kernels chosen in [compute]. It halts after a
// non-finite step under on_nonfinite = stop. `ranks`, if any, outlive the optimizer, which needs
// them where they share out the arena.
std::unique_ptr<Optimizer> make_optimizer(ParameterArena& arena, const Config& config,
                                          Communicator* ranks = nullptr);

// The ranks' part of Muon; none for null.
MuonExchange muon_exchange(Communicator* ranks);

}  // namespace quern
