#include "kernels/cpu/threads.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace quern::kernels::cpu {

namespace {

constexpr int kSpins = 4000;  // about 50 microseconds: longer than most gaps between kernels
constexpr int64_t kMaxPieces = int64_t{1} << 31;  // per round; more need several rounds
constexpr uint64_t kPieceMask = (uint64_t{1} << 32) - 1;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Set while a thread works on a piece: nested calls run only on that thread.
thread_local bool working = false;

class ThreadPool {
 public:
  ThreadPool() : count_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}
  ~ThreadPool() {
    stop_ = true;
    open(0);
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void set_count(int count) { count_ = std::max(1, count); }
  int count() const { return count_; }

  void run(int64_t pieces, void (*function)(const void*, int64_t), const void* context) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || count_ == 1) {
      for (int64_t piece = 0; piece < pieces; ++piece) function(context, piece);
      return;
    }
    while (static_cast<int>(threads_.size()) < count_ - 1) {
      threads_.emplace_back(&ThreadPool::work, this, static_cast<int>(threads_.size()) + 1);
    }
    for (int64_t first = 0; first < pieces; first += kMaxPieces) {
      run_ = function;
      context_ = context;
      first_ = first;
      const int64_t now = std::min(kMaxPieces, pieces - first);
      unfinished_ = now;
      open(static_cast<uint64_t>(now));
      claim_all();
      for (int spins = 0; unfinished_ != 0; ++spins) {
        if (spins < kSpins) {
          pause();
        } else {
          std::this_thread::yield();  // a thread with a begun piece may need this core
        }
      }
    }
  }

 private:
  // Begins a round. ticket_ is (round, pieces not yet claimed): a claim is one compare-and-swap,
  // and succeeds only in the round that the thread has seen.
  void open(uint64_t pieces) {
    ticket_.store((++round_ << 32) | pieces, std::memory_order_release);
    ticket_.notify_all();
  }

  void claim_all() {
    uint64_t seen = ticket_.load(std::memory_order_acquire);
    while ((seen & kPieceMask) != 0) {
      if (!ticket_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) continue;
      working = true;
      run_(context_, first_ + static_cast<int64_t>(seen & kPieceMask) - 1);
      working = false;
      unfinished_.fetch_sub(1, std::memory_order_acq_rel);
      seen = ticket_.load(std::memory_order_acquire);
    }
  }

  void work(int index) {
    while (!stop_) {
      uint64_t seen = ticket_.load(std::memory_order_acquire);
      for (int spins = 0; spins < kSpins && (seen & kPieceMask) == 0; ++spins) {
        pause();
        seen = ticket_.load(std::memory_order_acquire);
      }
      if ((seen & kPieceMask) == 0 || index >= count_) {
        if (!stop_) ticket_.wait(seen);
        continue;
      }
      claim_all();
    }
  }

  std::atomic<int> count_;
  std::mutex mutex_;  // held by the thread whose round it is
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};

  uint64_t round_ = 0;
  std::atomic<uint64_t> ticket_{0};
  // The open round; these change only when no piece of it is left.
  void (*run_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  int64_t first_ = 0;
  std::atomic<int64_t> unfinished_{0};
};

ThreadPool& pool() {
  static ThreadPool pool;  // threads are the process's, not a Context's; no result depends on them
  return pool;
}

}  // namespace

void set_thread_count(int count) {
  pool().set_count(count);
}
int thread_count() {
  return pool().count();
}

void run_pieces(int64_t pieces, void (*run)(const void*, int64_t), const void* context) {
  if (pieces > 1 && !working) return pool().run(pieces, run, context);
  for (int64_t piece = 0; piece < pieces; ++piece) run(context, piece);
}

}  // namespace quern::kernels::cpu
