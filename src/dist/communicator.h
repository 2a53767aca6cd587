// The ranks of a training and their collectives: NCCL between GPUs (nccl.h), Gloo between processes
// on CPUs (gloo.h), and in tests threads (tests/support/thread_group.h). Every rank makes the same
// calls in the same order.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "base/stream.h"

namespace quern {

class MemorySource;  // tensor/allocator.h

// `count` elements cut into one slice a rank. All slices have `each` elements but the last ones,
// which are shorter or empty. They begin at multiples of `step`, by default 256 bytes of FP32.
struct RankSlices {
  RankSlices(int64_t count, int ranks, int64_t step = 64) : count(count), ranks(ranks) {
    each = round_up(ceil_div(count, ranks), step);
  }

  // The same with a last slice of full length, where the buffer has room for it.
  RankSlices filled() const {
    RankSlices all = *this;
    all.count = ranks * each;
    return all;
  }

  int64_t begin(int rank) const { return std::min(rank * each, count); }
  int64_t end(int rank) const { return begin(rank + 1); }
  int64_t size(int rank) const { return end(rank) - begin(rank); }

  int64_t count = 0, each = 0;
  int ranks = 1;
};

// Bytes of a buffer that one rank has, and the others need.
struct RankPiece {
  int64_t begin = 0, bytes = 0;
  int owner = 0;
};

// A collective that did not complete: another rank is gone, hangs, or called something else. The
// message names this rank, the collective and the reason.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

// The collective failed because of this rank: its GPU or its NCCL has an error.
class OwnCommunicationError : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

// All pointers are to memory of the rank's device. On GPUs the work is enqueued on `stream` and may
// be captured; on the CPU it is complete when the call returns. `what` names the data in messages:
// "the gradients of block 3". A collective that exceeds the group's time limit throws
// CommunicationError on every rank, and the group cannot be used any more.
class Communicator {
 public:
  using Stream = kernels::cuda::Stream;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Time limit of a collective. A rank that has not answered by then counts as lost.
  std::chrono::milliseconds limit() const { return limit_; }
  // Time limit of collectives in which ranks wait for another's long work; 0: limit(). Over Gloo
  // every rank must still answer within limit(). NCCL cannot ask.
  virtual void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  virtual std::string engine() const = 0;  // with its version: "NCCL 2.28.3", "Gloo", "threads"

  // Source of memory that exchange() and gather() can move by copies from rank to rank, without a
  // GPU's multiprocessors, once it is registered. Null if the engine has none. The group's lifetime
  // bounds that of the memory.
  virtual std::shared_ptr<MemorySource> memory() { return nullptr; }
  // Registers a segment of memory() that has the same size on every rank and no content yet: the
  // call may overwrite its first 256 bytes. Returns whether copies move it from now on, the same on
  // every rank; false for other memory. A collective of the host's threads.
  virtual bool register_memory(void* /*segment*/, int64_t /*bytes*/) { return false; }

  // received + p * slices.each = slice rank() of rank p's `data`, for every p, itself included.
  // `data` has slices.count elements. `received` has size() * slices.each and must not overlap it;
  // its elements beyond a shorter slice are undefined. Both are registered memory, or neither is.
  virtual void exchange(float* received, const float* data, const RankSlices& slices,
                        const char* what, Stream stream) = 0;
  // Slice p of every rank's `data` = `own` of rank p; elements of `width` bytes. `own` is this
  // rank's slice of `data`, or does not overlap `data`. Both are registered memory, or neither is.
  virtual void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
                      const char* what, Stream stream) = 0;
  // Every piece of every rank's `data` = the same piece of its owner's `data`. For small pieces.
  virtual void share(void* data, const std::vector<RankPiece>& pieces, const char* what,
                     Stream stream) = 0;
  // `to` of every rank = `from` of the root; the other ranks' `from` is not read. `to` may be
  // `from`.
  virtual void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                         Stream stream) = 0;
  // The next two are only for `quern bench collectives`: a training sums exchanged slices itself.
  // to = the sum of `from` over the ranks, in an order that the engine chooses. `to` may be `from`.
  virtual void all_reduce(float* to, const float* from, int64_t count, const char* what,
                          Stream stream) = 0;
  // own = the sum of slice rank() of `data` over the ranks, in an order that the engine chooses.
  // `own` is that slice, or does not overlap `data`, which otherwise stays as it is.
  virtual void reduce_scatter(float* own, const float* data, const RankSlices& slices,
                              const char* what, Stream stream) = 0;

  // The same in place.
  void gather(void* data, const RankSlices& slices, int64_t width, const char* what,
              Stream stream) {
    gather(data, static_cast<char*>(data) + slices.begin(rank_) * width, slices, width, what,
           stream);
  }
  void broadcast(void* data, int64_t bytes, int root, const char* what, Stream stream) {
    broadcast(data, data, bytes, root, what, stream);
  }
  void all_reduce(float* data, int64_t count, const char* what, Stream stream) {
    all_reduce(data, data, count, what, stream);
  }
  void reduce_scatter(float* data, const RankSlices& slices, const char* what, Stream stream) {
    reduce_scatter(data + slices.begin(rank_), data, slices, what, stream);
  }

  virtual void barrier(const char* what) = 0;  // of the host's threads

  // Throws CommunicationError when a collective has failed, or a rank has called abort(). Call it
  // when the host has waited for a stream and before it uses the results: after a failure they are
  // garbage.
  virtual void check() {}
  // check(). Also starts the time limit of a piece of work, all that is enqueued on `stream` so
  // far: call it after each replay, since the group does not see the collectives of a captured
  // graph. A piece may take longer than the limit by as much as the latest ones took.
  virtual void watch(Stream /*stream*/) {}

  // Handler for a rank that cannot end by itself: its thread may wait for a copy from a rank that
  // is gone, and only the end of the process ends that wait. Another thread calls it with the
  // failure when no call has thrown it within an eighth of the limit, or when the group still
  // exists after a quarter; for an error of this rank, after a half and after the whole. `own`: an
  // error of this rank.
  using OnStuck = std::function<void(const std::string& failure, bool own)>;
  void set_on_stuck(OnStuck on_stuck) { on_stuck_ = std::move(on_stuck); }

  // The text of this rank's latest error that a collective (RankTeam::on_each) has sent to the
  // others; empty: none.
  void set_told(std::string error) { told_ = std::move(error); }
  const std::string& told() const { return told_; }

  // This rank ends because of an error of its own. Its pending and later collectives fail, and
  // those of the other ranks with "rank 1 of 3 on HOST has failed: REASON". From any thread.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  Communicator(int rank, int size, std::chrono::milliseconds limit)
      : rank_(rank), size_(size), limit_(limit) {}
  const OnStuck& on_stuck() const { return on_stuck_; }
  std::chrono::milliseconds longest() const { return std::max(limit_, patience_); }

 private:
  int rank_, size_;
  std::chrono::milliseconds limit_, patience_{0};
  OnStuck on_stuck_;
  std::string told_;
};

}  // namespace quern
