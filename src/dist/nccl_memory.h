// Memory that NCCL's collectives may move by copy engines: allocated by NCCL, and registered with
// the communicator. Only for builds with nccl.h.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "dist/nccl_library.h"
#include "tensor/allocator.h"

namespace quern {

// Without NCCL 2.28 nothing is registered. Not safe for threads.
class NcclMemory {
 public:
  NcclMemory(const Nccl& nccl, int rank) : nccl_(nccl), rank_(rank) {}

  // Hands out segments, which stay until free_segments(). This object outlives its use.
  std::shared_ptr<MemorySource> source();
  bool is_segment(const void* data) const;

  // Begins the registration of a segment, the same on every rank. When the communicator has done
  // its work, finish() tells whether copies move the segment from now on. Both return false where
  // they do not, on every rank.
  bool begin(ncclComm_t comm, void* segment, int64_t bytes);
  bool finish(void* segment, int64_t bytes);
  bool is_registered(const void* data, int64_t bytes) const;
  bool is_used() const { return !registered_.empty(); }

  void free_segments() noexcept;  // after the end of the communicator

 private:
  class Source;

  const Nccl& nccl_;
  int rank_;
  std::vector<void*> segments_;
  std::map<const char*, int64_t> registered_;  // and its bytes
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  std::list<ncclWindow_t> windows_;  // NCCL may write to one until the group ends
#endif
};

}  // namespace quern
