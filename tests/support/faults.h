// System calls that fail on demand: the test program defines open, openat, close, read, readdir,
// write, lseek, fstat, flock, fsync, sync_file_range, mkdir, remove, rename, renameat2 and unlinkat
// itself, so that those of the library and of libstdc++ come here first.
#pragma once

#include <functional>
#include <string>

namespace quern::testing_support {

// While it lives, every such call is first given to `hook` with its name and path (the old name, of
// a rename). The call fails with the errno that it returns; 0: the call goes on.
class FaultyCalls {
 public:
  using Hook = std::function<int(const std::string& call, const std::string& path)>;
  explicit FaultyCalls(Hook hook);
  ~FaultyCalls();
  FaultyCalls(const FaultyCalls&) = delete;
  FaultyCalls& operator=(const FaultyCalls&) = delete;
};

}  // namespace quern::testing_support
