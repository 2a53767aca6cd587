#include "dist/gloo.h"

#include "base/error.h"

#ifdef QUERN_WITH_GLOO

#include <gloo/allgatherv.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dist/collective_call.h"
#include "dist/collective_ring.h"
#include "dist/deadline.h"
#include "dist/gloo_notes.h"
#include "dist/gloo_store.h"
#include "dist/host_address.h"
#include "dist/host_name.h"
#include "dist/signal_block.h"

namespace quern {

namespace {

using std::chrono::milliseconds;
using Buffer = gloo::transport::UnboundBuffer;

// Gloo's messages begin with the place in its sources: "[/path/pair.cc:534] Connection closed".
std::string without_place(const std::string& message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : std::string::npos;
  return end == std::string::npos ? message : message.substr(end + 2);
}

constexpr uint64_t kProbe = 2;  // a slot beside those of the notes
constexpr int64_t kHostBytes = 64;
constexpr size_t kMostCall = 128;  // bytes of a collective's text in notes

// A rank that leaves sends a farewell to the others. If a connection ends without one, a rank
// closes all its others, so that every rank fails soon. Operations in the middle of a message do
// not notice that their connection is closed: their waits are aborted one by one.
//
// Before a collective's limit passes, a rank asks the others for their pending collective. At the
// limit it sends them the list of silent ranks and closes all connections. So each rank names the
// rank that hangs, not the first one that left because of it. A patient collective continues while
// all answer, and asks again. Gloo's own limit comes later; when it passes, Gloo closes all
// connections at once.
class GlooGroup final : public Communicator {
 public:
  GlooGroup(int rank, int size, milliseconds limit)
      : Communicator(rank, size, limit),
        context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {}
  ~GlooGroup() override;

  std::string engine() const override {
    return cat("Gloo ", GLOO_VERSION_MAJOR, '.', GLOO_VERSION_MINOR, '.', GLOO_VERSION_PATCH);
  }

  using Communicator::gather;
  void connect(Store& store);

  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream) override {
    run({"exchange", what, slices.count},
        [&](const CollectiveCall& call) { swap_slices(received, data, slices, call); });
  }

  void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
              const char* what, Stream) override {
    copy_unless_same(static_cast<char*>(data) + slices.begin(rank()) * width, own,
                     slices.size(rank()) * width);
    run({"gather", what, slices.count, width},
        [&](const CollectiveCall& call) { share_slices(data, slices, call); });
  }

  void share(void* data, const std::vector<RankPiece>& pieces, const char* what, Stream) override {
    run({"share", what, bytes_of(pieces), 1},
        [&](const CollectiveCall& call) { share_pieces(static_cast<char*>(data), pieces, call); });
  }

  void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                 Stream) override {
    QUERN_CHECK(root >= 0 && root < size(), "broadcast of ", what, ": root is ", root,
                ", expected a rank below ", size());
    if (rank() == root) copy_unless_same(to, from, bytes);
    run({"broadcast", what, bytes, 1, root},
        [&](const CollectiveCall& call) { send_from(root, to, bytes, call); });
  }

  void all_reduce(float* to, const float* from, int64_t count, const char* what, Stream) override {
    const RankSlices slices(count, size());
    run({"all_reduce", what, count}, [&](const CollectiveCall& call) {
      sum_own_slice(to + slices.begin(rank()), from, slices, call);
      share_slices(to, slices, call);
    });
  }

  void reduce_scatter(float* own, const float* data, const RankSlices& slices, const char* what,
                      Stream) override {
    run({"reduce_scatter", what, slices.count},
        [&](const CollectiveCall& call) { sum_own_slice(own, data, slices, call); });
  }

  void barrier(const char* what) override {
    const RankSlices none(0, size());
    run({"barrier", what},
        [&](const CollectiveCall& call) { swap_slices(&nothing_, &nothing_, none, call); });
  }

  void abort(const std::string& reason) noexcept override;

 private:
  // The buffers that Gloo waits on, for abort().
  class Pending {
   public:
    Pending(GlooGroup& group, std::vector<Buffer*> buffers) : group_(group) {
      const std::lock_guard lock(group_.mutex_);
      if (group_.closed_) fail("the group is closed");
      group_.pending_ = std::move(buffers);
    }
    ~Pending() {
      const std::lock_guard lock(group_.mutex_);
      group_.pending_.clear();
      group_.idle_.notify_all();
    }

   private:
    GlooGroup& group_;
  };

  void run(const CollectiveCall& call, const std::function<void(const CollectiveCall&)>& work);
  void swap_slices(float* received, const float* data, const RankSlices& slices,
                   const CollectiveCall& call);
  void share_slices(void* data, const RankSlices& slices, const CollectiveCall& call);
  void share_pieces(char* data, const std::vector<RankPiece>& pieces, const CollectiveCall& call);
  void gather_bytes(void* data, const std::vector<size_t>& of_ranks, const CollectiveCall& call);
  void sum_own_slice(float* to, const float* data, const RankSlices& slices,
                     const CollectiveCall& call);
  void send_from(int root, void* data, int64_t bytes, const CollectiveCall& call);

  // Gloo delivers a message only to an operation with the same tag. So ranks that call different
  // collectives wait until their limit; a message larger than expected would end the process.
  uint32_t next_tag(const CollectiveCall& call) { return call.hash(number_++); }
  // Gloo's limit is the second one.
  milliseconds gloo_limit() const { return 2 * longest(); }
  template <class Options>
  Buffer* out(Options& options, void* data, int64_t bytes) {
    auto buffer = context_->createUnboundBuffer(data, static_cast<size_t>(bytes));
    Buffer* const raw = buffer.get();
    options.template setOutput<char>(std::move(buffer));
    return raw;
  }
  void share_hosts();
  void start_watching();
  void receive(int from, NoteKind kind, const std::string& text);
  void set_verdict(const std::string& why) {
    if (verdict_.empty()) verdict_ = why;
  }
  void tell(const std::vector<int>& ranks, NoteKind kind, const std::string& text);
  void keep_time();
  void end_late_collective();
  std::string rank_on_host(int rank) const;
  void close();
  std::vector<int> lost_ranks();
  std::string lost_text();
  std::string reason(const std::string& message);

  std::shared_ptr<gloo::rendezvous::Context> context_;
  uint64_t number_ = 0;
  std::string failure_;         // of an earlier collective
  std::vector<float> scratch_;  // what a sum receives
  float nothing_ = 0;           // memory of an empty collective

  std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<Buffer*> pending_;
  bool closed_ = false, aborted_ = false;

  // With the mutex: what this rank does, and what the others have answered.
  CollectiveRing ring_;
  std::string call_;  // the pending collective; empty: none
  milliseconds call_limit_{};
  std::vector<std::optional<std::string>> answers_;
  std::string verdict_;  // why all connections are closed, as far as known

  std::vector<char> hosts_;  // kHostBytes for each rank
  std::optional<GlooNotes> notes_;
  std::condition_variable timer_wakes_;
  bool ending_ = false;
  std::thread timer_;
};

void GlooGroup::connect(Store& store) {
  const PipeSignalBlock no_signals;
  try {
    std::shared_ptr<gloo::transport::Device> device;
    {
      const std::string address = listening_address(store, "gloo/host", rank(), size());
      const SignalBlock inherited;  // by the device's thread
      device = gloo::transport::tcp::CreateDevice(address.c_str());
    }
    GlooStore adapter(store);
    context_->setTimeout(std::max(limit() / 5, milliseconds(1)));  // it connects five times as long
    context_->connectFullMesh(adapter, device);
    context_->setTimeout(gloo_limit());
    start_watching();
  } catch (const CommunicationError& error) {
    throw CommunicationError(cat(rank_text(rank(), size()), ": ", error.what()));
  } catch (const std::exception& error) {
    const bool is_late = std::string(error.what()).find("timeout") != std::string::npos;
    throw CommunicationError(cat(rank_text(rank(), size()), ": connecting to the other ranks: ",
                                 is_late ? cat("no answer within ", in_words(limit()))
                                         : cat("a rank is gone: ", without_place(error.what()))));
  }
  share_hosts();  // now no rank needs the store
}

void GlooGroup::share_hosts() {
  hosts_.resize(static_cast<size_t>(size() * kHostBytes));
  const std::string host = host_name();
  host.copy(hosts_.data() + rank() * kHostBytes, kHostBytes - 1);
  gather(hosts_.data(), RankSlices(size() * kHostBytes, size()), 1, "the start", {});
}

// "rank 2 on HOST"
std::string GlooGroup::rank_on_host(int rank) const {
  const char* const host = hosts_.data() + rank * kHostBytes;
  return *host == '\0' ? cat("rank ", rank) : cat("rank ", rank, " on ", host);
}

void GlooGroup::start_watching() {
  answers_.resize(static_cast<size_t>(size()));
  notes_.emplace(
      context_, [this](int from, NoteKind kind, const auto& text) { receive(from, kind, text); },
      [this] {
        const std::string text = lost_text();
        {
          const std::lock_guard lock(mutex_);
          set_verdict(text);
        }
        close();
      });
  const SignalBlock inherited;
  timer_ = std::thread([this] { keep_time(); });
}

void GlooGroup::receive(int from, NoteKind kind, const std::string& text) {
  std::unique_lock lock(mutex_);
  if (kind == NoteKind::question) {
    const std::string call = call_.substr(0, kMostCall);
    lock.unlock();
    notes_->send(from, NoteKind::answer, call);
  } else if (kind == NoteKind::answer) {
    answers_[static_cast<size_t>(from)] = text;
  } else {
    set_verdict(kind == NoteKind::late ? text + ring_.text(Deadline::Clock::now()) : text);
    lock.unlock();
    close();
  }
}

void GlooGroup::tell(const std::vector<int>& ranks, NoteKind kind, const std::string& text) {
  for (const int p : ranks) notes_->send(p, kind, text);
  for (const int p : ranks) notes_->flush(p, milliseconds(100));
}

// Asks after two thirds of the limit. Judges at the limit, at least a third of it after the
// question, so that a loaded machine has time to answer. A patient collective repeats both.
void GlooGroup::keep_time() {
  const milliseconds pause = std::clamp(limit() / 40, milliseconds(1), milliseconds(250));
  int64_t number = 0, round = 0;  // of the collective, and how often its ranks have answered
  std::optional<Deadline::Clock::time_point> asked;
  std::unique_lock lock(mutex_);
  while (!ending_ && !closed_) {
    timer_wakes_.wait_for(lock, pause);
    if (call_.empty()) continue;
    const CollectiveRing::Record& call = ring_.latest();
    if (std::exchange(number, call.number) != call.number) round = 0, asked.reset();
    const auto now = Deadline::Clock::now();
    const auto passed = now - call.begun + pause;
    if (!asked && passed >= limit() * round + limit() * 2 / 3) {
      asked = now;
      answers_.assign(answers_.size(), std::nullopt);
      lock.unlock();
      for (int p = 0; p < size(); ++p) {
        if (p != rank()) notes_->send(p, NoteKind::question);
      }
      lock.lock();
    } else if (asked && passed >= limit() * (round + 1) && now - *asked + pause >= limit() / 3) {
      const auto answered = std::ranges::count_if(answers_, [](const auto& a) { return bool(a); });
      if (answered + 1 < size() || passed >= call_limit_) {
        lock.unlock();
        end_late_collective();
        lock.lock();
      } else {
        round += 1;
        asked.reset();
      }
    }
  }
}

// Tells the others why, and closes all connections.
void GlooGroup::end_late_collective() {
  std::string silent, elsewhere, verdict;
  std::vector<int> answered;
  {
    const std::lock_guard lock(mutex_);
    for (int p = 0; p < size(); ++p) {
      const auto& answer = answers_[static_cast<size_t>(p)];
      if (p == rank()) continue;
      if (answer) answered.push_back(p);
      if (!answer) silent += cat(silent.empty() ? "" : ", ", rank_on_host(p));
      if (!answer || answer->substr(0, kMostCall) == call_.substr(0, kMostCall)) continue;
      elsewhere += cat(elsewhere.empty() ? "" : "; ", rank_on_host(p),
                       answer->empty() ? " is in no collective" : " is in " + *answer);
    }
    verdict = !silent.empty() ? cat("no answer within ", in_words(limit()), " from ", silent,
                                    ": it hangs or cannot be reached")
                              : cat("not complete within ", in_words(call_limit_),
                                    elsewhere.empty() ? "" : ": ", elsewhere);
    set_verdict(verdict + ring_.text(Deadline::Clock::now()));
  }
  tell(answered, NoteKind::late, verdict);
  close();
}

GlooGroup::~GlooGroup() {
  if (!timer_.joinable()) return;
  const PipeSignalBlock no_signals;
  const bool is_sound = [this] {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    return failure_.empty() && !closed_;
  }();
  timer_wakes_.notify_all();
  timer_.join();
  if (is_sound) notes_->say_farewell(limit());
  notes_.reset();
}

void GlooGroup::run(const CollectiveCall& call,
                    const std::function<void(const CollectiveCall&)>& work) {
  const auto throw_error = [&] {
    throw CommunicationError(cat(rank_text(rank(), size()), ": ", call.title(), ": ", failure_));
  };
  if (!failure_.empty()) throw_error();
  const PipeSignalBlock no_signals;
  {
    const std::lock_guard lock(mutex_);
    call_ = call.text();
    call_limit_ = longest();
    ring_.add(call.name, call.what, call.count * call.width, Deadline::Clock::now());
    ring_.latest().state = CollectiveState::running;
  }
  try {
    work(call);
    const std::lock_guard lock(mutex_);
    call_.clear();
    if (!closed_) ring_.latest().state = CollectiveState::complete;
    if (!closed_) return;  // an aborted wait looks as if it were complete
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  failure_ = reason(failure_);
  close();
  throw_error();
}

// Gloo packs the received slices; the last ranks' ones are shorter than slices.each.
void GlooGroup::swap_slices(float* received, const float* data, const RankSlices& slices,
                            const CollectiveCall& call) {
  const int64_t own = slices.size(rank());
  std::vector<int64_t> sent, expected(static_cast<size_t>(size()), own);
  for (int p = 0; p < size(); ++p) sent.push_back(slices.size(p));
  gloo::AlltoallvOptions options(context_);
  auto in = context_->createUnboundBuffer(const_cast<float*>(data),
                                          static_cast<size_t>(slices.count) * sizeof(float));
  auto out =
      context_->createUnboundBuffer(received, static_cast<size_t>(size() * own) * sizeof(float));
  const std::vector<Buffer*> buffers{in.get(), out.get()};
  options.setInput<float>(std::move(in), sent);
  options.setOutput<float>(std::move(out), expected);
  options.setTag(next_tag(call));
  options.setTimeout(gloo_limit());
  {
    const Pending pending(*this, buffers);
    gloo::alltoallv(options);
  }
  for (int p = size() - 1; p > 0 && own < slices.each; --p) {
    std::copy_backward(received + p * own, received + (p + 1) * own,
                       received + p * slices.each + own);
  }
}

void GlooGroup::share_slices(void* data, const RankSlices& slices, const CollectiveCall& call) {
  std::vector<size_t> bytes;
  for (int p = 0; p < size(); ++p) {
    bytes.push_back(static_cast<size_t>(slices.size(p) * call.width));
  }
  gather_bytes(data, bytes, call);
}

// The pieces of one rank travel together.
void GlooGroup::share_pieces(char* data, const std::vector<RankPiece>& pieces,
                             const CollectiveCall& call) {
  std::vector<size_t> bytes(static_cast<size_t>(size()));
  for (const RankPiece& piece : pieces) {
    bytes[static_cast<size_t>(piece.owner)] += static_cast<size_t>(piece.bytes);
  }
  std::vector<char> packed(static_cast<size_t>(call.count) + 1);  // data() is never null
  const auto for_each_piece = [&](const auto& f) {
    std::vector<size_t> at(bytes.size());
    std::exclusive_scan(bytes.begin(), bytes.end(), at.begin(), size_t{0});
    for (const RankPiece& piece : pieces) {
      const auto owner = static_cast<size_t>(piece.owner);
      f(piece, packed.begin() + static_cast<ptrdiff_t>(at[owner]));
      at[owner] += static_cast<size_t>(piece.bytes);
    }
  };
  for_each_piece([&](const RankPiece& piece, auto place) {
    if (piece.owner == rank()) std::copy_n(data + piece.begin, piece.bytes, place);
  });
  gather_bytes(packed.data(), bytes, call);
  for_each_piece([&](const RankPiece& piece, auto place) {
    if (piece.owner != rank()) std::copy_n(place, piece.bytes, data + piece.begin);
  });
}

void GlooGroup::gather_bytes(void* data, const std::vector<size_t>& of_ranks,
                             const CollectiveCall& call) {
  gloo::AllgathervOptions options(context_);
  const size_t all = std::accumulate(of_ranks.begin(), of_ranks.end(), size_t{0});
  auto out = context_->createUnboundBuffer(data, all);
  const std::vector<Buffer*> buffers{out.get()};
  options.setOutput<char>(std::move(out), of_ranks);
  options.setTag(next_tag(call));
  options.setTimeout(gloo_limit());
  const Pending pending(*this, buffers);
  gloo::allgatherv(options);
}

void GlooGroup::send_from(int root, void* data, int64_t bytes, const CollectiveCall& call) {
  gloo::BroadcastOptions options(context_);
  const Pending pending(*this, {out(options, data, bytes)});
  options.setRoot(root);
  options.setTag(next_tag(call));
  options.setTimeout(gloo_limit());
  gloo::broadcast(options);
}

// In the order of the ranks, so that the sum does not depend on which rank computes it.
void GlooGroup::sum_own_slice(float* to, const float* data, const RankSlices& slices,
                              const CollectiveCall& call) {
  const size_t needed = static_cast<size_t>(size() * slices.each) + 1;  // data() is never null
  if (scratch_.size() < needed) scratch_.resize(needed);
  swap_slices(scratch_.data(), data, slices, call);
  const int64_t own = slices.size(rank());
  std::copy_n(scratch_.data(), own, to);
  for (int p = 1; p < size(); ++p) {
    const float* const term = scratch_.data() + p * slices.each;
    for (int64_t i = 0; i < own; ++i) to[i] += term[i];
  }
}

// Ranks whose connection is closed, other than by this rank. A failed pair throws its error at
// every use.
std::vector<int> GlooGroup::lost_ranks() {
  std::vector<int> lost;
  for (int p = 0; p < size(); ++p) {
    if (p == rank()) continue;
    try {
      context_->createUnboundBuffer(&nothing_, 0)->recv(p, kProbe, 0, 0);
    } catch (const std::exception& error) {
      const bool closed_here = std::string(error.what()).find("timeout") != std::string::npos;
      if (!closed_here) lost.push_back(p);
    }
  }
  return lost;
}

// "rank 0 on HOST and rank 2 on HOST are gone: killed, ended or failed"; "" if none is lost.
std::string GlooGroup::lost_text() {
  const std::vector<int> lost = lost_ranks();
  std::this_thread::sleep_for(milliseconds(100));  // a rank that fails has sent its verdict before
  std::string list;
  for (size_t i = 0; i < lost.size(); ++i) {
    list += cat(i == 0 ? "" : i + 1 < lost.size() ? ", " : " and ", rank_on_host(lost[i]));
  }
  if (lost.empty()) return "";
  return cat(list, lost.size() > 1 ? " are" : " is", " gone: killed, ended or failed");
}

std::string GlooGroup::reason(const std::string& message) {
  const auto known = [this] {
    const std::lock_guard lock(mutex_);
    return aborted_ ? std::string("aborted") : verdict_;
  };
  if (const std::string why = known(); !why.empty()) return why;
  const std::string lost = lost_text();  // a verdict may come meanwhile
  if (const std::string why = known(); !why.empty()) return why;
  return lost.empty() ? cat("Gloo: ", without_place(message)) : lost;
}

// A wait that is too short makes Gloo close all connections.
void GlooGroup::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  try {
    context_->createUnboundBuffer(&nothing_, 0)->waitRecv(nullptr, milliseconds(1));
  } catch (const std::exception&) {
  }
  std::unique_lock lock(mutex_);
  while (!pending_.empty()) {
    for (Buffer* const buffer : pending_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
    idle_.wait_for(lock, milliseconds(1));
  }
}

void GlooGroup::abort(const std::string& reason) noexcept {
  bool is_sound = false;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    is_sound = !closed_ && verdict_.empty();
  }
  try {
    const PipeSignalBlock no_signals;
    std::vector<int> others;
    for (int p = 0; p < size() && is_sound; ++p) {
      if (p != rank()) others.push_back(p);
    }
    tell(others, NoteKind::failure, failure_text(rank_text(rank(), size()), reason));
    close();
  } catch (const std::exception&) {  // out of memory: the limit ends pending operations
  }
}

}  // namespace

std::unique_ptr<Communicator> gloo_group(Store& store, int rank, int size, milliseconds limit) {
  QUERN_CHECK(size >= 1 && rank >= 0 && rank < size, "Gloo: rank ", rank, " of ", size,
              ", expected a rank below the number of ranks");
  QUERN_CHECK(limit.count() > 0, "Gloo: the limit is ", limit.count(), " ms, expected more than 0");
  auto group = std::make_unique<GlooGroup>(rank, size, limit);
  group->connect(store);
  return group;
}

}  // namespace quern

#else

namespace quern {

std::unique_ptr<Communicator> gloo_group(Store&, int, int, std::chrono::milliseconds) {
  fail(
      "this build has no Gloo, which training over several CPU ranks needs. On Debian and Ubuntu: "
      "apt install libgloo-dev, then build again");
}

}  // namespace quern

#endif
