#include "kernels/cuda/gemm/gemm_tuning.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "kernels/cuda/primitives/cuda_check.h"

namespace quern::kernels::cuda {

namespace {

constexpr double kClearly = 0.98;      // of the favourite's time, for another one to replace it
constexpr double kHopeless = 1.3;      // of the best median so far: not timed again
constexpr double kFirstRoundMs = 4e3;  // then no further candidate is tried
constexpr double kLongUs = 100.0;      // products that go to the final
constexpr size_t kFinalists = 8;       // beside the favourite and the one in use
constexpr double kWarmUpMs = 500.0, kRunInMs = 250.0, kTimedMs = 150.0;

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

  // The median from a cold cache, or the first sample alone when it is beyond `hopeless`. The very
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

  // Runs `time` for about `ms`.
  double time_for(const Timed& timed, double ms) {
    return time(timed.algorithm, std::max(1, static_cast<int>(1e3 * ms / timed.us)));
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

// Replaces the finalists' times by those under load. The power limit reacts slowly: an algorithm's
// own power sets the clock only after some hundred milliseconds. They run one after the other; the
// warm-up makes the chip as hot for the first as for the last.
void final_round(std::vector<Timed>& finalists, Stopwatch& watch) {
  watch.time_for(finalists.front(), kWarmUpMs);
  for (Timed& finalist : finalists) {
    watch.time_for(finalist, kRunInMs);
    finalist.us = watch.time_for(finalist, kTimedMs);
  }
}

bool faster(const Timed& a, const Timed& b) {
  return a.us < b.us;
}

// The algorithms that run, each once.
std::vector<Timed> distinct(const std::vector<Timed>& all) {
  std::vector<Timed> kept;
  for (const Timed& timed : all) {
    const bool seen = std::any_of(kept.begin(), kept.end(), [&](const Timed& other) {
      return other.algorithm == timed.algorithm;
    });
    if (!seen && std::isfinite(timed.us)) kept.push_back(timed);
  }
  return kept;
}

// The algorithm's time; 0 when `times` lacks it.
double time_of(const GemmAlgorithm& algorithm, const std::vector<Timed>& times) {
  for (const Timed& timed : times) {
    if (timed.algorithm == algorithm) return timed.us;
  }
  return 0.0;
}

}  // namespace

GemmMeasurement find_fastest(const std::vector<GemmAlgorithm>& candidates,
                             const GemmAlgorithm* before, const GemmTrial& trial, Stream stream) {
  Stopwatch watch(trial, stream);
  std::vector<Timed> times = first_round(candidates, watch);
  const Timed favourite = times.front();
  std::vector<Timed> kept{favourite};
  if (before) kept.push_back({*before, watch.time_alone(*before, INFINITY)});
  std::sort(times.begin(), times.end(), faster);

  GemmMeasurement result;
  result.candidates = static_cast<int64_t>(times.size());
  result.sustained = std::isfinite(times.front().us) && times.front().us >= kLongUs;
  times.resize(std::min(times.size(), result.sustained ? kFinalists : 1));
  kept.insert(kept.end(), times.begin(), times.end());
  kept = distinct(kept);
  QUERN_CHECK(!kept.empty(), "gemm: the library refuses every algorithm that it proposes");
  if (result.sustained) final_round(kept, watch);

  result.favourite_us = time_of(favourite.algorithm, kept);
  result.before_us = before ? time_of(*before, kept) : 0.0;
  const Timed best = *std::min_element(kept.begin(), kept.end(), faster);
  const bool stays =
      !result.sustained && best.us > kClearly * result.favourite_us && result.favourite_us > 0.0;
  result.chosen = stays ? favourite.algorithm : best.algorithm;
  result.chosen_us = stays ? result.favourite_us : best.us;
  return result;
}

}  // namespace quern::kernels::cuda
