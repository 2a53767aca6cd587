// The functions of nccl.h in a build without NCCL.
#if !defined(QUERN_WITH_CUDA) || !__has_include(<nccl.h>)

#include "base/error.h"
#include "dist/nccl.h"

namespace quern {

namespace {

#ifdef QUERN_WITH_CUDA
constexpr char kReason[] = "this build has no NCCL: its header nccl.h was not found";
#else
constexpr char kReason[] = "this build has no CUDA code";
#endif

[[noreturn]] void refuse() {
  throw UsageError(cat("NCCL is not available: ", kReason, kHowToInstallNccl));
}

}  // namespace

bool nccl_available(std::string* why_not, const std::string& /*library*/) {
  if (why_not) *why_not = kReason;
  return false;
}

std::string nccl_version() {
  refuse();
}

std::unique_ptr<Communicator> nccl_group(const std::shared_ptr<Store>& /*store*/, int /*rank*/,
                                         int /*size*/, std::chrono::milliseconds /*limit*/) {
  refuse();
}

}  // namespace quern

#endif
