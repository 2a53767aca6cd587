#if defined(QUERN_WITH_CUDA) && __has_include(<nccl.h>)

#include "dist/nccl_memory.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"

namespace quern {

class NcclMemory::Source : public MemorySource {
 public:
  explicit Source(NcclMemory& memory) : memory_(memory) {}
  void* allocate(int64_t bytes) override {
    void* data = nullptr;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (memory_.nccl_.allocate(&data, static_cast<size_t>(bytes)) != ncclSuccess) return nullptr;
    memory_.segments_.push_back(data);
#endif
    return data;
  }
  void release(void* /*segment*/) noexcept override {}
  std::string name() const override {
    return cat("NCCL on rank ", memory_.rank_);
  }

 private:
  NcclMemory& memory_;
};

std::shared_ptr<MemorySource> NcclMemory::source() {
  return std::make_shared<Source>(*this);
}

bool NcclMemory::is_segment(const void* data) const {
  return std::ranges::find(segments_, data) != segments_.end();
}

bool NcclMemory::is_registered(const void* data, int64_t bytes) const {
  const auto* const begin = static_cast<const char*>(data);
  const auto after = registered_.upper_bound(begin);
  if (after == registered_.begin()) return false;
  const auto& [address, size] = *std::prev(after);
  return begin + bytes <= address + size;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
bool NcclMemory::begin(ncclComm_t comm, void* segment, int64_t bytes) {
  return !is_error(nccl_.add_window(comm, segment, static_cast<size_t>(bytes),
                                    &windows_.emplace_back(nullptr), NCCL_WIN_COLL_SYMMETRIC));
}

bool NcclMemory::finish(void* segment, int64_t bytes) {
  if (windows_.back() == nullptr) return false;
  registered_[static_cast<const char*>(segment)] = bytes;
  return true;
}

void NcclMemory::free_segments() noexcept {
  for (void* const segment : segments_) nccl_.free(segment);
}
#else
bool NcclMemory::begin(ncclComm_t /*comm*/, void* /*segment*/, int64_t /*bytes*/) {
  return false;
}

bool NcclMemory::finish(void* /*segment*/, int64_t /*bytes*/) {
  return false;
}

void NcclMemory::free_segments() noexcept {}
#endif

}  // namespace quern

#endif
