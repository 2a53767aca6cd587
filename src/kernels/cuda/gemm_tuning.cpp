#include "kernels/cuda/gemm_tuning.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/cuda/cuda_check.h"

namespace quern::kernels::cuda {

namespace {

constexpr double kClearly = 0.98;     // of the favourite's time, for another one to replace it
constexpr double kHopeless = 1.3;     // of the best median so far: not timed again
constexpr double kFirstRoundMs = 4e3;  // then no further candidate is tried
constexpr double kLongUs = 100.0;     // products that go to the final
constexpr size_t kFinalists = 4;
constexpr int kTurns = 3;
constexpr double kTurnMs = 40.0, kWarmUpMs = 60.0;

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { check_cuda(cudaEventCreate(&handle), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

struct Timed {
  GemmAlgorithm algorithm;
  double us;  // a product; infinity: the library refuses it
};

class Stopwatch {
 public:
  Stopwatch(const GemmTrial& trial, Stream stream)
      : trial_(trial), stream_(static_cast<cudaStream_t>(stream.handle)) {}

  // Microseconds a product of `runs` back to back; infinity when refused.
  double time(const GemmAlgorithm& algorithm, int runs) {
    check_cuda(cudaEventRecord(start_.handle, stream_), "cudaEventRecord");
    for (int i = 0; i < runs; ++i) {
      if (!trial_.multiply(algorithm)) return INFINITY;
    }
    check_cuda(cudaEventRecord(stop_.handle, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(stop_.handle), "timing a matrix product");
    float ms = 0.0f;
    check_cuda(cudaEventElapsedTime(&ms, start_.handle, stop_.handle), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(ms) / runs;
  }

  // The median from a cold cache; the first sample alone when it is beyond `hopeless`. The very
  // first run loads the kernel and is not timed.
  double time_alone(const GemmAlgorithm& algorithm, double hopeless) {
    if (std::isinf(time(algorithm, 1))) return INFINITY;
    double us[9];
    us[0] = time_cold(algorithm);
    if (us[0] > hopeless) return us[0];
    const int runs = us[0] < 1e3 ? 9 : 5;
    for (int i = 1; i < runs; ++i) us[i] = time_cold(algorithm);
    std::nth_element(us, us + runs / 2, us + runs);
    return us[runs / 2];
  }

  // As `time` for about `ms`.
  double time_for(const GemmAlgorithm& algorithm, double ms, double us) {
    return time(algorithm, std::max(1, static_cast<int>(1e3 * ms / us)));
  }

 private:
  double time_cold(const GemmAlgorithm& algorithm) {
    trial_.evict();
    return time(algorithm, 1);
  }

  const GemmTrial& trial_;
  cudaStream_t stream_;
  Event start_, stop_;
};

std::vector<Timed> first_round(const std::vector<GemmAlgorithm>& candidates, Stopwatch& watch) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Timed> times;
  double best = INFINITY;
  for (const GemmAlgorithm& candidate : candidates) {
    times.push_back({candidate, watch.time_alone(candidate, kHopeless * best)});
    best = std::min(best, times.back().us);
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    if (spent.count() > kFirstRoundMs) break;
  }
  return times;
}

// Replaces the finalists' times by those under load. They take turns, so that a drift of the clock
// meets all.
void final_round(std::vector<Timed>& finalists, Stopwatch& watch) {
  watch.time_for(finalists.front().algorithm, kWarmUpMs, finalists.front().us);
  std::vector<double> sums(finalists.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < finalists.size(); ++i) {
      sums[i] += watch.time_for(finalists[i].algorithm, kTurnMs, finalists[i].us);
    }
  }
  for (size_t i = 0; i < finalists.size(); ++i) finalists[i].us = sums[i] / kTurns;
}

bool faster(const Timed& a, const Timed& b) {
  return a.us < b.us;
}

}  // namespace

GemmMeasurement find_fastest(const std::vector<GemmAlgorithm>& candidates,
                             const GemmAlgorithm* before, const GemmTrial& trial, Stream stream) {
  Stopwatch watch(trial, stream);
  std::vector<Timed> times = first_round(candidates, watch);
  const Timed favourite = times.front();
  std::vector<Timed> kept{favourite};  // then `before`, if there is one, then the best others
  if (before) kept.push_back({*before, watch.time_alone(*before, INFINITY)});
  std::sort(times.begin(), times.end(), faster);

  GemmMeasurement result;
  result.candidates = static_cast<int64_t>(times.size());
  result.sustained = times.front().us >= kLongUs && std::isfinite(times.front().us);
  times.resize(std::min(times.size(), result.sustained ? kFinalists : 1));
  kept.insert(kept.end(), times.begin(), times.end());
  std::erase_if(kept, [](const Timed& timed) { return std::isinf(timed.us); });
  QUERN_CHECK(!kept.empty(), "gemm: the library refuses every algorithm that it proposes");
  if (result.sustained) final_round(kept, watch);

  const auto time_of = [&](const GemmAlgorithm& algorithm) {
    const auto found = std::find_if(kept.begin(), kept.end(),
                                    [&](const Timed& timed) { return timed.algorithm == algorithm; });
    return found == kept.end() ? 0.0 : found->us;
  };
  result.favourite_us = time_of(favourite.algorithm);
  result.before_us = before ? time_of(*before) : 0.0;
  const Timed best = *std::min_element(kept.begin(), kept.end(), faster);
  const bool stays = !result.sustained && result.favourite_us > 0.0 &&
                     best.us > kClearly * result.favourite_us;
  result.chosen = stays ? favourite.algorithm : best.algorithm;
  result.chosen_us = stays ? result.favourite_us : best.us;
  return result;
}

}  // namespace quern::kernels::cuda
