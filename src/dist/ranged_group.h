// A group whose collectives are ranges of a profile: each is an op with its name.
#pragma once

#include "dist/communicator.h"
#include "tensor/context.h"

namespace quern {

class RangedGroup : public Communicator {
 public:
  // group: outlives this.
  explicit RangedGroup(Communicator& group)
      : Communicator(group.rank(), group.size(), group.limit()), group_(group) {}

  void set_patience(std::chrono::milliseconds patience) override { group_.set_patience(patience); }
  std::string engine() const override { return group_.engine(); }
  std::shared_ptr<MemorySource> memory() override { return group_.memory(); }
  bool register_memory(void* segment, int64_t bytes) override {
    return group_.register_memory(segment, bytes);
  }
  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream stream) override {
    const RangeScope range(RangeKind::op, "exchange");
    group_.exchange(received, data, slices, what, stream);
  }
  void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
              const char* what, Stream stream) override {
    const RangeScope range(RangeKind::op, "gather");
    group_.gather(data, own, slices, width, what, stream);
  }
  void share(void* data, const std::vector<RankPiece>& pieces, const char* what,
             Stream stream) override {
    const RangeScope range(RangeKind::op, "share");
    group_.share(data, pieces, what, stream);
  }
  void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                 Stream stream) override {
    const RangeScope range(RangeKind::op, "broadcast");
    group_.broadcast(to, from, bytes, root, what, stream);
  }
  void all_reduce(float* to, const float* from, int64_t count, const char* what,
                  Stream stream) override {
    const RangeScope range(RangeKind::op, "all_reduce");
    group_.all_reduce(to, from, count, what, stream);
  }
  void reduce_scatter(float* own, const float* data, const RankSlices& slices, const char* what,
                      Stream stream) override {
    const RangeScope range(RangeKind::op, "reduce_scatter");
    group_.reduce_scatter(own, data, slices, what, stream);
  }
  void barrier(const char* what) override {
    const RangeScope range(RangeKind::op, "barrier");
    group_.barrier(what);
  }
  void check() override { group_.check(); }
  void watch(Stream stream) override { group_.watch(stream); }
  void abort(const std::string& reason) noexcept override { group_.abort(reason); }

 private:
  Communicator& group_;
};

}  // namespace quern
