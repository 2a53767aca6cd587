#if defined(QUERN_WITH_CUDA) && __has_include(<nccl.h>)

#include "dist/nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dist/capture_marks.h"
#include "dist/collective_call.h"
#include "dist/collective_watch.h"
#include "dist/deadline.h"
#include "dist/host_name.h"
#include "dist/nccl_library.h"
#include "dist/nccl_memory.h"
#include "dist/roll_call.h"
#include "dist/signal_block.h"
#include "tensor/allocator.h"
#include "tensor/context.h"

namespace quern {

namespace {

using std::chrono::milliseconds;
using Clock = CollectiveWatch::Clock;

constexpr milliseconds kWatchPeriod{50};
constexpr milliseconds kMostRollCall{500};
constexpr milliseconds kGrace{200};  // for other ranks to see the same failure
// Time between two questions whether another rank has reported an error; limit of the answer; and,
// if the store ends with this rank, its wait for the others to ask.
constexpr milliseconds kQuestions{500}, kQuestion{20}, kReaders{1000};
constexpr int64_t kFloatBytes = sizeof(float);

// NCCL's communicator is non-blocking: a call returns before its work is on the stream, and
// settle() waits for that. Only the watchdog, or the destructor after it, destroys or aborts the
// communicator, because both wait until graphs that captured its collectives are destroyed.
class NcclGroup : public Communicator {
 public:
  NcclGroup(const Nccl& nccl, int rank, int size, milliseconds limit)
      : Communicator(rank, size, limit),
        nccl_(nccl),
        watch_(limit, device_event),
        memory_(nccl_, rank),
        host_stream_(cuda::OwnedStream::create()),
        host_value_(cuda::device_allocate(kFloatBytes)) {
    QUERN_CHECK(host_value_, "NCCL: the GPU has no memory left");
    cuda::set_zero(host_value_.get(), kFloatBytes, host_stream_);
  }
  ~NcclGroup() override;

  // Both wait for all ranks; connect() until one of them has reported to the store that it cannot.
  void connect(const ncclUniqueId& id, int device, const std::shared_ptr<Store>& store);
  void enter_roll(const std::shared_ptr<Store>& store, const std::string& group);

  void set_patience(milliseconds patience) override;
  using Communicator::gather;
  std::string engine() const override { return cat("NCCL ", nccl_.version()); }
  std::shared_ptr<MemorySource> memory() override;
  bool register_memory(void* segment, int64_t bytes) override;
  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream stream) override;
  void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
              const char* what, Stream stream) override;
  void share(void* data, const std::vector<RankPiece>& pieces, const char* what,
             Stream stream) override;
  void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                 Stream stream) override;
  void all_reduce(float* to, const float* from, int64_t count, const char* what,
                  Stream stream) override {
    reduce_all("all_reduce", to, from, count, what, stream);
  }
  void reduce_scatter(float* own, const float* data, const RankSlices& slices, const char* what,
                      Stream stream) override;
  void barrier(const char* what) override;
  void check() override;
  void watch(Stream stream) override;
  void abort(const std::string& reason) noexcept override;

 private:
  struct Hearing {
    std::atomic<bool> heard = false;  // the failure has reached a caller
    std::atomic<bool> ended = false;  // and the group is gone
  };
  struct ReleaseDevice {
    void operator()(void* data) const noexcept { cuda::device_release(data); }
  };

  template <class Calls>
  void enqueue(const char* kind, const char* what, int64_t bytes, Stream stream,
               const Calls& calls);
  void reduce_all(const char* kind, float* to, const float* from, int64_t count, const char* what,
                  Stream stream);
  void settle(const std::string& call);
  void run_watchdog(int device) noexcept;

  // These expect mutex_ to be locked.
  ncclResult_t state() const;
  void set_failure(const std::string& call, const std::string& reason);
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& call,
               const std::string& reason);
  std::string running() const;
  void set_error(const std::string& call, ncclResult_t result);
  void ask_for_failures(std::unique_lock<std::mutex>& lock);
  milliseconds time_for_readers() const { return std::min(kReaders, limit() / 6); }
  void throw_failure() const;
  void tell_unless_ended() const;

  const Nccl& nccl_;
  // Guards the following members. It is held during every call of NCCL with comm_ but the last.
  std::mutex mutex_;
  std::condition_variable wake_;
  ncclComm_t comm_ = nullptr;
  bool failed_ = false, stop_ = false;
  std::string
      cause_;  // of the failure, if it is an error of this rank, which the others do not see
  std::string failure_;
  CollectiveWatch watch_;
  CaptureMarks marks_;
  bool aborted_ = false;  // of the watchdog; read when it has ended
  NcclMemory memory_;
  std::shared_ptr<Store> start_;    // from connect to enter_roll
  std::unique_ptr<RollCall> roll_;  // from enter_roll on
  bool roll_called_ = false;
  Clock::time_point next_question_;
  std::shared_ptr<Hearing> hearing_ = std::make_shared<Hearing>();
  std::thread watchdog_;
  // For barrier().
  cuda::OwnedStream host_stream_;
  std::unique_ptr<void, ReleaseDevice> host_value_;
};

void NcclGroup::connect(const ncclUniqueId& id, int device, const std::shared_ptr<Store>& store) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;  // copy engines where memory is registered
#endif
  const std::string call = "start of the group";
  {
    const SignalBlock inherited;  // by NCCL's threads
    const std::lock_guard lock(mutex_);
    start_ = store;
    const ncclResult_t result = nccl_.init(&comm_, size(), id, rank(), &config);
    if (is_error(result)) set_failure(call, nccl_.text(result, nullptr));
    throw_failure();
  }
  settle(call);
  const SignalBlock inherited;
  watchdog_ = std::thread([this, device] { run_watchdog(device); });
}

void NcclGroup::enter_roll(const std::shared_ptr<Store>& store, const std::string& group) {
  auto roll = std::make_unique<RollCall>(store, rank(), size(), group);
  const std::lock_guard lock(mutex_);
  roll_ = std::move(roll);
  start_.reset();
}

// Without failure and pending work, NCCL's state is the same on all ranks and is just freed.
NcclGroup::~NcclGroup() {
  bool is_idle = false;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    try {
      is_idle = !failed_ && watch_.is_idle();
    } catch (const Error&) {  // the GPU has failed
    }
  }
  wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (comm_ && !aborted_ && is_idle && !failed_) {
    nccl_.destroy(comm_);
    memory_.free_segments();
  } else if (comm_ && !aborted_) {
    nccl_.abort(comm_);
  }
  hearing_->ended = true;
}

// Also joins the thread that enqueued the last call.
ncclResult_t NcclGroup::state() const {
  ncclResult_t now = ncclSuccess;
  const ncclResult_t result = nccl_.get_state(comm_, &now);
  return is_error(result) ? result : now;
}

void NcclGroup::set_failure(const std::string& call, const std::string& reason) {
  if (failed_) return;
  failed_ = true;
  failure_ =
      cat(rank_text(rank(), size()), ": NCCL ", call, ": ", reason, watch_.text(Clock::now()));
  wake_.notify_all();
}

// Sets the failure from an error of NCCL. An error of a connection may be another rank's.
void NcclGroup::set_error(const std::string& call, ncclResult_t result) {
  const std::string text = nccl_.text(result, comm_);
  if (!failed_ && result != ncclRemoteError && result != ncclSystemError) cause_ = text;
  set_failure(call, text);
}

// Fails the group, and names the missing rank. Unlocks meanwhile: one thread asks, and one that
// comes later waits for its result.
void NcclGroup::give_up(std::unique_lock<std::mutex>& lock, const std::string& call,
                        const std::string& reason) {
  if (std::exchange(roll_called_, true)) {
    return wake_.wait(lock, [&] { return failed_ || stop_; });
  }
  std::string who = RollCall::kUnknown;
  if (roll_) {
    lock.unlock();
    who = roll_->answer(call, std::min(kMostRollCall, limit() / 10));
    lock.lock();
  }
  set_failure(call, cat(reason, ": ", who));
}

void NcclGroup::throw_failure() const {
  if (!failed_) return;
  hearing_->heard = true;
  if (!cause_.empty()) throw OwnCommunicationError(failure_);
  throw CommunicationError(failure_.empty() ? cat(rank_text(rank(), size()), ": NCCL: aborted")
                                            : failure_);
}

// Waits until NCCL has made the connections that the call needs, and enqueued its work.
void NcclGroup::settle(const std::string& call) {
  const Clock::time_point begin = Clock::now();
  for (int round = 0;; ++round) {
    {
      std::unique_lock lock(mutex_);
      throw_failure();
      const ncclResult_t result = state();
      if (result == ncclSuccess) return;
      if (is_error(result)) {
        ask_for_failures(lock);  // NCCL does not know why the other end is gone
        set_error(call, result);
      } else if (Clock::now() - begin > longest()) {
        give_up(lock, call, cat("no answer within ", in_words(longest())));
      } else if (start_ && Clock::now() >= next_question_) {
        ask_for_failures(lock);
      }
      throw_failure();
    }
    if (round < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// `calls` enqueues on the stream; NCCL fuses what it calls. Without bytes it is not called.
template <class Calls>
void NcclGroup::enqueue(const char* kind, const char* what, int64_t bytes, Stream stream,
                        const Calls& calls) {
  const std::string call = cat(kind, " of ", what);
  const bool captured = cuda::is_capturing(stream);
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    if (bytes == 0) return;
    watch_.add(kind, what, bytes, Clock::now());
    if (captured) marks_.begin(call, stream);
    ncclResult_t result = nccl_.group_start();
    if (!is_error(result)) {
      result = calls(static_cast<cudaStream_t>(stream.handle));
      const ncclResult_t end = nccl_.group_end();
      if (!is_error(result)) result = end;
    }
    if (is_error(result)) set_error(call, result);
    throw_failure();
  }
  settle(call);
  const std::lock_guard lock(mutex_);
  if (captured) {
    marks_.end(stream);
    watch_.set_captured();
  } else {
    watch_.set_running(stream, Clock::now());
  }
}

void NcclGroup::exchange(float* received, const float* data, const RankSlices& slices,
                         const char* what, Stream stream) {
  // NCCL hangs if one side of a transfer is registered and the other is not.
  QUERN_CHECK(memory_.is_registered(data, 1) == memory_.is_registered(received, 1),
              "NCCL exchange of ", what,
              ": registered memory on one side only; expected both or neither");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  const int64_t all = size() * slices.each * kFloatBytes;
  if (size() > 1 && memory_.is_registered(data, all) && memory_.is_registered(received, all)) {
    return enqueue("exchange", what, slices.count * kFloatBytes, stream, [&](cudaStream_t raw) {
      const auto count = static_cast<size_t>(slices.each);
      return nccl_.all_to_all(data, received, count, ncclFloat, comm_, raw);
    });
  }
#endif
  // Also from this rank to itself: NCCL's kernel makes that copy beside the others.
  enqueue("exchange", what, slices.count * kFloatBytes, stream, [&](cudaStream_t raw) {
    const int64_t own = slices.size(rank());
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < size() && !is_error(result); ++peer) {
      const auto outgoing = static_cast<size_t>(slices.size(peer));
      if (outgoing > 0) {
        result = nccl_.send(data + slices.begin(peer), outgoing, ncclFloat, peer, comm_, raw);
      }
      if (own > 0 && !is_error(result)) {
        result = nccl_.recv(received + peer * slices.each, static_cast<size_t>(own), ncclFloat,
                            peer, comm_, raw);
      }
    }
    return result;
  });
}

void NcclGroup::gather(void* data, const void* own, const RankSlices& slices, int64_t width,
                       const char* what, Stream stream) {
  auto* const bytes = static_cast<uint8_t*>(data);
  const auto at = [&](int peer) { return bytes + slices.begin(peer) * width; };
  enqueue("gather", what, slices.count * width, stream, [&](cudaStream_t raw) {
    if (slices.count == size() * slices.each) {
      return nccl_.all_gather(own, data, static_cast<size_t>(slices.each * width), ncclUint8, comm_,
                              raw);
    }
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < size() && !is_error(result); ++peer) {
      const auto count = static_cast<size_t>(slices.size(peer) * width);
      if (count == 0) continue;
      const void* const from = peer == rank() ? own : at(peer);
      result = nccl_.broadcast(from, at(peer), count, ncclUint8, peer, comm_, raw);
    }
    return result;
  });
}

void NcclGroup::share(void* data, const std::vector<RankPiece>& pieces, const char* what,
                      Stream stream) {
  enqueue("share", what, bytes_of(pieces), stream, [&](cudaStream_t raw) {
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < pieces.size() && !is_error(result); ++i) {
      auto* const piece = static_cast<uint8_t*>(data) + pieces[i].begin;
      result = nccl_.broadcast(piece, piece, static_cast<size_t>(pieces[i].bytes), ncclUint8,
                               pieces[i].owner, comm_, raw);
    }
    return result;
  });
}

void NcclGroup::broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                          Stream stream) {
  enqueue("broadcast", what, bytes, stream, [&](cudaStream_t raw) {
    return nccl_.broadcast(from, to, static_cast<size_t>(bytes), ncclUint8, root, comm_, raw);
  });
}

void NcclGroup::reduce_all(const char* kind, float* to, const float* from, int64_t count,
                           const char* what, Stream stream) {
  enqueue(kind, what, count * kFloatBytes, stream, [&](cudaStream_t raw) {
    return nccl_.all_reduce(from, to, static_cast<size_t>(count), ncclFloat, ncclSum, comm_, raw);
  });
}

void NcclGroup::reduce_scatter(float* own, const float* data, const RankSlices& slices,
                               const char* what, Stream stream) {
  enqueue("reduce_scatter", what, slices.count * kFloatBytes, stream, [&](cudaStream_t raw) {
    if (slices.count == size() * slices.each) {
      return nccl_.reduce_scatter(data, own, static_cast<size_t>(slices.each), ncclFloat, ncclSum,
                                  comm_, raw);
    }
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < size() && !is_error(result); ++peer) {
      const auto count = static_cast<size_t>(slices.size(peer));
      if (count == 0) continue;
      result =
          nccl_.reduce(data + slices.begin(peer), own, count, ncclFloat, ncclSum, peer, comm_, raw);
    }
    return result;
  });
}

std::shared_ptr<MemorySource> NcclGroup::memory() {
  if (!nccl_.has_copies() || size() == 1) return nullptr;
  return memory_.source();
}

bool NcclGroup::register_memory(void* segment, int64_t bytes) {
  if (!memory_.is_segment(segment)) return false;
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    if (!memory_.begin(comm_, segment, bytes)) return false;
  }
  settle("registration of memory");
  {
    const std::lock_guard lock(mutex_);
    if (!memory_.finish(segment, bytes)) return false;
  }
  // Outside of graphs NCCL numbers the signals of its copies from 1 on; in a graph each signal
  // is 1. If a single copy came before a graph, its replays would take the old signal for a new
  // one.
  for (int i = 0; i < 2; ++i) {
    gather(segment, RankSlices(size() * 64, size()), kFloatBytes, "registered memory",
           host_stream_);
  }
  barrier("the registration of memory");
  return true;
}

// A sum of one value of each rank, for which the host waits.
void NcclGroup::barrier(const char* what) {
  auto* const value = static_cast<float*>(host_value_.get());
  reduce_all("barrier", value, value, 1, what, host_stream_);
  cuda::Event end(cuda::EventKind::order);
  end.record(host_stream_);
  while (!end.is_done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const std::lock_guard lock(mutex_);
  throw_failure();  // an aborted sum also ends
}

void NcclGroup::set_patience(milliseconds patience) {
  const std::lock_guard lock(mutex_);
  Communicator::set_patience(patience);
  watch_.set_limit(longest());
}

void NcclGroup::check() {
  const std::lock_guard lock(mutex_);
  throw_failure();
}

void NcclGroup::watch(Stream stream) {
  const std::lock_guard lock(mutex_);
  throw_failure();
  if (!cuda::is_capturing(stream)) watch_.watch(stream, Clock::now());
}

// The watchdog tells the other ranks.
void NcclGroup::abort(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(failed_, true)) {
    try {
      failure_ = cat(rank_text(rank(), size()), ": NCCL: aborted: ", reason);
      cause_ = reason;
    } catch (const std::bad_alloc&) {  // the others reach their limit
    }
  }
  wake_.notify_all();
}

// The collective that the stream waits for: "exchange of the losses".
std::string NcclGroup::running() const {
  const std::string call = watch_.running();
  return call == CollectiveWatch::kPiece ? marks_.running() : call.empty() ? "communication" : call;
}

// Sets the failure that another rank has reported. Unlocks meanwhile.
void NcclGroup::ask_for_failures(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Store> start = start_;
  if (!roll_ && !start) return;
  lock.unlock();
  const std::string reported = start ? start->reported_failure(kQuestion)
                                     : roll_->reported_failure(kQuestion, time_for_readers());
  lock.lock();
  next_question_ = Clock::now() + kQuestions;
  if (!reported.empty()) set_failure(running(), reported);
}

void NcclGroup::run_watchdog(int device) noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_ && !failed_) {
    wake_.wait_for(lock, kWatchPeriod);
    if (stop_ || failed_) continue;
    try {
      cuda::set_device(device);  // a query would make a CUDA context on GPU 0 otherwise
      const ncclResult_t result = state();
      if (is_error(result)) {
        ask_for_failures(lock);
        set_error(running(), result);
      } else if (watch_.is_late(Clock::now())) {
        give_up(lock, running(), cat("not complete within ", in_words(watch_.allowed())));
        // An abort can complete the collective on other ranks, with garbage. First they get time to
        // see that it is late.
        wake_.wait_for(lock, kGrace, [&] { return stop_; });
      } else if (Clock::now() >= next_question_) {
        ask_for_failures(lock);
      }
    } catch (const Error& error) {  // the GPU has failed
      ask_for_failures(lock);
      if (!failed_) cause_ = error.what();
      set_failure("communication", error.what());
    }
  }
  if (!failed_) return;
  const std::string cause = cause_;
  if (memory_.is_used() && on_stuck()) tell_unless_ended();
  lock.unlock();
  if (!cause.empty() && roll_) roll_->report_failure(cause, time_for_readers());
  nccl_.abort(comm_);
  aborted_ = true;
}

// A thread that knows of the failure may still wait for a copy, while it gives up the GPU's work.
void NcclGroup::tell_unless_ended() const {
  std::thread([hearing = hearing_, failure = failure_, tell = on_stuck(), own = !cause_.empty(),
               pause = limit() / (cause_.empty() ? 8 : 2)] {
    std::this_thread::sleep_for(pause);
    if (hearing->heard) std::this_thread::sleep_for(pause);
    if (!hearing->ended) tell(failure, own);
  }).detach();
}

const Nccl& loaded_nccl() {
  static const Nccl nccl = [] {
    Nccl functions;
    const std::string reason = functions.load("auto");
    if (reason.empty()) return functions;
    throw UsageError(cat("NCCL is not available: ", reason, kHowToInstallNccl));
  }();
  return nccl;
}

}  // namespace

bool nccl_available(std::string* why_not, const std::string& library) {
  const std::string reason = Nccl().load(library);
  if (why_not) *why_not = reason;
  return reason.empty();
}

std::string nccl_version() {
  return cat("NCCL ", loaded_nccl().version());
}

std::unique_ptr<Communicator> nccl_group(const std::shared_ptr<Store>& store, int rank, int size,
                                         milliseconds limit) {
  const Device device = Context::current().device();
  QUERN_CHECK(device.is_cuda(), "NCCL: the current device is ", device, ", expected a GPU");
  const Nccl& nccl = loaded_nccl();
  // NCCL 2.28.3 registers memory() that a captured collective uses by itself, and its broadcasts
  // then read illegal addresses. register_memory() registers what gains from it.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  cuda::set_device(device.index);
  auto group = std::make_unique<NcclGroup>(nccl, rank, size, limit);
  ncclUniqueId id;
  constexpr char kKey[] = "nccl/id";
  if (rank == 0) {
    const ncclResult_t result = nccl.get_id(&id);
    if (is_error(result)) {
      throw CommunicationError(
          cat("rank 0 of ", size, ": NCCL start of the group: ", nccl.text(result, nullptr)));
    }
    store->set(kKey, std::string(id.internal, sizeof(id.internal)));
  } else {
    const std::string text = store->get(kKey);
    QUERN_CHECK(text.size() == sizeof(id.internal), "NCCL: the store's ", kKey, " has ",
                text.size(), " bytes, expected ", sizeof(id.internal));
    std::memcpy(id.internal, text.data(), sizeof(id.internal));
  }
  group->connect(id, device.index, store);
  group->enter_roll(store,
                    cat(std::hash<std::string>()(std::string(id.internal, sizeof(id.internal)))));
  return group;
}

}  // namespace quern

#endif
