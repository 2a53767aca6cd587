#if defined(QUERN_WITH_CUDA) && __has_include(<nccl.h>)

#include "dist/nccl_library.h"

#include <dlfcn.h>

#include <vector>

#include "base/error.h"

namespace quern {

std::string Nccl::load(const std::string& library) {
  std::vector<std::string> paths{library};
  if (library == "auto") paths = {"libnccl.so.2", QUERN_CUDA_LIBRARIES "/libnccl.so.2"};
  void* handle = nullptr;
  std::string error;
  for (size_t i = 0; i < paths.size() && !handle; ++i) {
    handle = dlopen(paths[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle && error.empty()) error = dlerror();
  }
  if (!handle) return error;
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (!function && error.empty()) error = cat("the library has no ", name);
  };
  error.clear();
  find(get_version, "ncclGetVersion");
  find(get_id, "ncclGetUniqueId");
  find(init, "ncclCommInitRankConfig");
  find(get_state, "ncclCommGetAsyncError");
  find(destroy, "ncclCommDestroy");
  find(abort, "ncclCommAbort");
  find(error_string, "ncclGetErrorString");
  find(last_error, "ncclGetLastError");
  find(group_start, "ncclGroupStart");
  find(group_end, "ncclGroupEnd");
  find(send, "ncclSend");
  find(recv, "ncclRecv");
  find(all_gather, "ncclAllGather");
  find(broadcast, "ncclBroadcast");
  find(all_reduce, "ncclAllReduce");
  find(reduce_scatter, "ncclReduceScatter");
  find(reduce, "ncclReduce");
  find_copies(handle);
  return error;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
void Nccl::find_copies(void* handle) {
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
  };
  find(allocate, "ncclMemAlloc");
  find(free, "ncclMemFree");
  find(add_window, "ncclCommWindowRegister");
  find(all_to_all, "ncclAlltoAll");
}

bool Nccl::has_copies() const {
  return allocate && free && add_window && all_to_all;
}
#else
void Nccl::find_copies(void* /*handle*/) {}
bool Nccl::has_copies() const {
  return false;
}
#endif

std::string Nccl::version() const {
  int code = 0;
  get_version(&code);
  return cat(code / 10000, '.', code / 100 % 100, '.', code % 100);
}

// NCCL keeps its last message for the whole process; it may be empty.
std::string Nccl::text(ncclResult_t result, ncclComm_t comm) const {
  std::string text = error_string(result);
  const char* last = last_error(comm);
  if (last && *last) text += cat(": ", last);
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

}  // namespace quern

#endif
