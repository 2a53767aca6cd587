// The ranks of a training and their collectives: NCCL between GPUs (nccl.h), Gloo between processes
// on CPUs (gloo.h), threads of one process for tests (thread_group.h). Every rank makes the same
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

// Memory is that of the ranks' devices. On GPUs the work is enqueued on `stream` and may be
// captured; on the CPU it is done when the call returns. `what` names the data in messages: "the
// gradients of block 3". A collective that takes longer than the group's time limit throws
// CommunicationError on every rank; the group is of no use after that.
class Communicator {
 public:
  using Stream = kernels::cuda::Stream;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // How long a collective may take: another rank that does not answer by then is lost.
  std::chrono::milliseconds limit() const { return limit_; }
  // A longer time for a collective in which ranks wait for another's work; 0: none. Over Gloo every
  // rank must still answer within limit(); NCCL cannot ask.
  virtual void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  virtual std::string engine() const = 0;  // with its version: "NCCL 2.28.3", "Gloo", "threads"

  // Memory for buffers that exchange() and gather() move without a GPU's multiprocessors, by copies
  // from rank to rank, once register_memory() has them; null: there is none. It is used as long as
  // the group lives.
  virtual std::shared_ptr<MemorySource> memory() { return nullptr; }
  // A segment of memory(), of the same size on every rank and without content: its first 256 bytes
  // a rank may change. Returns whether copies move it from now on, the same on every rank; false
  // for other memory. A collective of the host's threads.
  virtual bool register_memory(void* /*segment*/, int64_t /*bytes*/) { return false; }

  // received + p * slices.each = slice rank() of rank p's `data`, for every p, itself included.
  // received: size() * slices.each elements, apart from data: slices.count elements. Elements of
  // received beyond a shorter slice are undefined. Both are registered memory, or neither.
  virtual void exchange(float* received, const float* data, const RankSlices& slices,
                        const char* what, Stream stream) = 0;
  // Slice p of every rank's `data` = slice p of rank p's, in place; elements of `width` bytes.
  virtual void gather(void* data, const RankSlices& slices, int64_t width, const char* what,
                      Stream stream) = 0;
  // Every piece of every rank's `data` = the same piece of its owner's `data`. For few bytes.
  virtual void share(void* data, const std::vector<RankPiece>& pieces, const char* what,
                     Stream stream) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root, const char* what, Stream stream) = 0;
  // In place, in an order that the engine chooses.
  virtual void all_reduce(float* data, int64_t count, const char* what, Stream stream) = 0;
  // Slice rank() of `data` = its sum over the ranks, in an order that the engine chooses. The other
  // slices stay as they are.
  virtual void reduce_scatter(float* data, const RankSlices& slices, const char* what,
                              Stream stream) = 0;
  virtual void barrier(const char* what) = 0;  // of the host's threads

  // Throws CommunicationError when a collective has failed meanwhile, or abort() was called. The
  // time limit also applies to the work on `stream` so far, of which a captured graph is not seen
  // otherwise: call this after each replay, and again once the host has waited for the stream,
  // before it uses the results. After a failure they are garbage.
  virtual void check(Stream /*stream*/) {}

  // Called from another thread with a failure that no call of this rank has thrown within half the
  // limit, or after which the group is still there when the limit is over: a thread may wait for a
  // copy from a rank that is gone, which nothing ends but the process.
  void set_on_stuck(std::function<void(const std::string&)> on_stuck) {
    on_stuck_ = std::move(on_stuck);
  }

  // Makes every pending and later collective of this rank fail. From any thread.
  virtual void abort() noexcept = 0;

 protected:
  Communicator(int rank, int size, std::chrono::milliseconds limit)
      : rank_(rank), size_(size), limit_(limit) {}
  const std::function<void(const std::string&)>& on_stuck() const { return on_stuck_; }
  std::chrono::milliseconds longest() const { return std::max(limit_, patience_); }

 private:
  int rank_, size_;
  std::chrono::milliseconds limit_, patience_{0};
  std::function<void(const std::string&)> on_stuck_;
};

}  // namespace quern
