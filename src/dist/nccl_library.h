// Loads libnccl.so.2 when a group needs it. Only for builds with nccl.h.
#pragma once

#include <nccl.h>

#include <string>

namespace quern {

inline bool is_error(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

// The functions of libnccl.so.2. It is never unloaded: its threads may still run.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) get_state = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)  // copies by copy engines; null in older libraries
  decltype(&ncclMemAlloc) allocate = nullptr;
  decltype(&ncclMemFree) free = nullptr;
  decltype(&ncclCommWindowRegister) add_window = nullptr;
  decltype(&ncclAlltoAll) all_to_all = nullptr;
#endif

  std::string load(const std::string& library);  // the reason for a failure, else ""
  void find_copies(void* handle);
  bool has_copies() const;
  std::string version() const;
  std::string text(ncclResult_t result, ncclComm_t comm) const;
};

}  // namespace quern
