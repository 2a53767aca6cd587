// Joins the ranks of a command into one group.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "base/device.h"
#include "commands.h"
#include "config/config.h"
#include "dist/communicator.h"
#include "ranks.h"

namespace quern {

// command(), which calls join_ranks if this process is one of several ranks. When it throws before,
// prints the error and gives it to the other ranks, which wait for this one. Returns the exit code.
int as_a_rank(const Arguments& args, const std::function<int()>& command);

// The group of all ranks: NCCL on GPUs, Gloo on CPUs. Returns when every rank has joined with the
// same build and configuration. Throws CommunicationError when a rank is missing after
// config.parallel.comm_limit, is there twice, differs, or cannot make its part of the group. Needs
// a current Context.
std::unique_ptr<Communicator> join_ranks(const RankPlace& place, Device device,
                                         const Config& config);

// work(). When it throws an error of this rank alone, the other ranks of the group get its text,
// unless they have it. The group may be null.
template <class Work>
auto as_one_of(Communicator* group, const Work& work) {
  try {
    return work();
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception& error) {
    if (group == nullptr) throw;
    const std::string what = error.what();
    if (group->told().empty() || !what.starts_with(group->told())) group->abort(what);
    throw;
  }
}

}  // namespace quern
