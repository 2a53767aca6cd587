// The ranks of a command: --gpus N and --ranks N, or those that another launcher has started.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "ranks.h"
#include "tensor/context.h"

namespace quern {

// Adds --gpus.
std::vector<ExtraFlag> with_gpus_flag(std::vector<ExtraFlag> flags);
// Adds --gpus and --store.
std::vector<ExtraFlag> with_rank_flags(std::vector<ExtraFlag> flags);

// Sets the keys that --gpus N stands for: ranks = N and device = cuda. Throws UsageError when other
// flags contradict.
void apply_gpus(const std::string& command, ParsedArgs& parsed);

// Sets `place` and parsed.config.parallel.ranks, and applies --gpus. When the command line or the
// configuration asks for several ranks and no launcher has started them: runs `quern COMMAND args`
// once a rank, and returns the exit code (supervisor.h). Throws UsageError.
std::optional<int> launch_ranks(const Command& command, const Arguments& args, ParsedArgs& parsed,
                                RankPlace& place);

// make_context() on the GPU of this rank, or with its part of the machine's cores.
std::unique_ptr<Context> make_rank_context(const RankPlace& place, const ComputeSection& compute,
                                           uint64_t seed);

}  // namespace quern
