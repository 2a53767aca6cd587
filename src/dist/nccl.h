// Collectives between GPUs by NCCL. The library is loaded at run time: training on one GPU does not
// need it.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/store.h"

namespace quern {

inline constexpr char kHowToInstallNccl[] =
    "; install it with `pip install nvidia-nccl-cu13` (its library is "
    "site-packages/nvidia/nccl/lib/libnccl.so.2) or NVIDIA's package libnccl2";

// Whether NCCL can be used; why_not (may be null) receives the reason otherwise. `library`: the
// path of libnccl.so.2; "auto" searches the system and the build's toolkit.
bool nccl_available(std::string* why_not = nullptr, const std::string& library = "auto");

// "NCCL 2.28.9". Throws UsageError without NCCL, with the package to install.
std::string nccl_version();

// A group of GPUs: each rank's is that of its current Context. Each group needs a store of its own.
// Throws UsageError without NCCL, as nccl_version(), and CommunicationError when a rank does not
// appear within the limit. A collective's failure names the rank that did not take part,
// if the store knows it.
// A graph that captured its collectives must be destroyed before the group. Work that runs when the
// group is destroyed is aborted.
std::unique_ptr<Communicator> nccl_group(const std::shared_ptr<Store>& store, int rank, int size,
                                         std::chrono::milliseconds limit);

}  // namespace quern
