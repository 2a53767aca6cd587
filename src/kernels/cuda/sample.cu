// The next token of each row of logits (B, V). A cluster of blocks searches a row, each block a
// contiguous part of the ids, and never sorts. Thresholds of top_k and top_p are found two bits at
// a time in the order of the floats. Bound by the number of passes and of barriers: three of each
// without filters.
#include "kernels/sample.h"

#include "kernels/common/sample_math.h"
#include "kernels/cuda/primitives/cluster_exchange.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kCluster = kExchangeBlocks;  // blocks a row
constexpr int kEight = 8;                  // ids a thread takes at a time

// Inverse of ordered(): the float of a key.
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A row of logits; this block has ids [begin, end).
template <class T, int kThreads>
struct RowLogits {
  const T* logits;      // of the row
  const uint8_t* seen;  // a bit an id
  float penalty;
  int begin, end, V;
  bool vectors;        // 8 logits from a multiple of 8 on can be read 16 bytes at a time
  float held[kEight];  // this thread's first logits; all it has for V up to 64 kThreads

  __device__ __forceinline__ bool are_held(int i) const { return i < begin + kThreads * kEight; }
  // Called before the first for_each.
  __device__ __forceinline__ void hold() {
    load(held, begin + static_cast<int>(threadIdx.x) * kEight);
  }
  // Calls body(i, x) with x[e] the penalized logit of id i + e, for this thread's ids, 8 neighbours
  // at a time; ids past the end are -inf. All threads of the block make equally many calls.
  template <class Body>
  __device__ __forceinline__ void for_each(Body body) const {
    if (begin >= end) return;
    body(begin + static_cast<int>(threadIdx.x) * kEight, held);
    for (int first = begin + kThreads * kEight; first < end; first += kThreads * kEight) {
      const int i = first + static_cast<int>(threadIdx.x) * kEight;
      float x[kEight];
      load(x, i);
      body(i, x);
    }
  }
  __device__ __forceinline__ void load(float (&x)[kEight], int i) const {
    if (vectors && i + kEight <= end) {
      load_vec(x, logits + i);
    } else {
#pragma unroll
      for (int e = 0; e < kEight; ++e) x[e] = i + e < end ? to_float(logits[i + e]) : -INFINITY;
    }
    const uint32_t bits = penalty != 1.0f && i < end ? seen[i / 8] : 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) x[e] = penalized(x[e], (bits >> e & 1) != 0, penalty);
  }
};

// The tokens that are kept: those above `key`, and those at it up to id `last_tie`; of these only
// the ones with a weight of at least `least`.
struct Cut {
  uint32_t key = 0;
  uint64_t ties = 0;  // how many at `key` are kept
  int last_tie = INT32_MAX;
  uint64_t least = 0;
};

template <class T, int kThreads>
class RowSearch {
 public:
  __device__ RowSearch(const RowLogits<T, kThreads>& logits, const SampleOptions& options,
                       Exchange<kThreads>& exchange)
      : logits_(logits), options_(options), exchange_(exchange) {}

  // The most probable token; ties go to the lowest id.
  __device__ int greedy() {
    uint64_t best = 0;
    each([&](int id, float x) {
      const uint64_t candidate = uint64_t{ordered(x)} << 32 | ~static_cast<uint32_t>(id);
      if (candidate > best) best = candidate;
    });
    best = exchange_.all(best, Max64{});
    return static_cast<int>(~static_cast<uint32_t>(best));
  }

  // Returns the drawn token in one thread of the cluster, -1 in the others. u: see draw_below.
  __device__ int draw(uint32_t u, uint64_t least) {
    uint64_t largest = 0;
    each([&](int, float x) { largest = Max64{}(largest, ordered(x)); });
    largest_ = from_ordered(static_cast<uint32_t>(exchange_.all(largest, Max64{})));
    inverse_ = 1.0f / options_.temperature;
    Cut cut;
    if (options_.top_k > 0 && options_.top_k < logits_.V) keep_top_k(cut);
    if (options_.top_p < 1.0) keep_top_p(cut);
    if (cut.ties > 0) find_last_tie(cut);
    cut.least = least;
    uint64_t sum = 0, held_sum = 0, before = 0;
    logits_.for_each([&](int i, const float(&x)[kEight]) {
      const uint64_t eight = kept_weights(cut, i, x);
      if (logits_.are_held(i)) held_sum = eight;
      sum += eight;
    });
    const uint64_t total = exchange_.sum(sum, before);
    const uint64_t target = draw_below(total, u);
    return find(cut, target - before, target >= before, held_sum);
  }

 private:
  // Calls body(id, x) for this thread's ids.
  template <class Body>
  __device__ __forceinline__ void each(Body body) const {
    logits_.for_each([&](int i, const float(&x)[kEight]) {
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        if (i + e < logits_.end) body(i + e, x[e]);
      }
    });
  }
  __device__ __forceinline__ uint64_t weight(float x) const {
    return sample_weight(x, largest_, inverse_);
  }
  __device__ __forceinline__ uint64_t kept_weight(const Cut& cut, int id, float x) const {
    if (cut.key == 0 && cut.least <= 1) return weight(x);  // all are kept
    const uint32_t key = ordered(x);
    if (key < cut.key || (key == cut.key && id > cut.last_tie)) return 0;
    const uint64_t w = weight(x);
    return w >= cut.least ? w : 0;
  }
  // The sum of kept_weight over ids [i, i + kEight).
  __device__ __forceinline__ uint64_t kept_weights(const Cut& cut, int i,
                                                   const float (&x)[kEight]) const {
    uint64_t sum = 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      if (i + e < logits_.end) sum += kept_weight(cut, i + e, x[e]);
    }
    return sum;
  }

  // The largest number of `bits` bits for which the sum of measure(id, x, number) over all ids,
  // plus `constant(number)`, is at least `enough`. The sum falls as the number grows, and is enough
  // at 0.
  template <class Measure, class Constant>
  __device__ uint32_t largest_with(int bits, uint64_t enough, Measure measure, Constant constant) {
    uint32_t number = 0;
    for (int shift = bits - 2; shift >= 0; shift -= 2) {
      uint64_t sums[3] = {};
      each([&](int id, float x) {
#pragma unroll
        for (uint32_t j = 0; j < 3; ++j) sums[j] += measure(id, x, number | (j + 1) << shift);
      });
      exchange_.all(sums, Sum64{});
      uint32_t digit = 0;
#pragma unroll
      for (uint32_t j = 0; j < 3; ++j) {
        if (sums[j] + constant(number | (j + 1) << shift) >= enough) digit = j + 1;
      }
      number |= digit << shift;
    }
    return number;
  }

  __device__ void keep_top_k(Cut& cut) {
    const auto k = static_cast<uint64_t>(options_.top_k);
    cut.key = largest_with(
        32, k, [](int, float x, uint32_t key) { return uint64_t{ordered(x) >= key}; },
        [](uint32_t) { return uint64_t{0}; });
    uint64_t above = 0;
    each([&](int, float x) { above += ordered(x) > cut.key; });
    cut.ties = k - exchange_.all(above, Sum64{});
  }

  __device__ void keep_top_p(Cut& cut) {
    const uint32_t least_key = cut.key;
    const uint64_t at_cut = cut.ties > 0 ? cut.ties * weight(from_ordered(least_key)) : uint64_t{0};
    const auto sum_from = [&](uint32_t key) {
      uint64_t sum = 0;
      each([&](int, float x) {
        const uint32_t mine = ordered(x);
        if (mine > least_key && mine >= key) sum += weight(x);
      });
      return exchange_.all(sum, Sum64{});
    };
    const uint64_t enough = share_of(sum_from(0) + at_cut, options_.top_p);
    cut.key = largest_with(
        32, enough,
        [&](int, float x, uint32_t key) {
          const uint32_t mine = ordered(x);
          return mine > least_key && mine >= key ? weight(x) : 0;
        },
        [&](uint32_t key) { return key <= least_key ? at_cut : 0; });
    const uint64_t missing = enough - sum_from(cut.key + 1);
    const uint64_t one = weight(from_ordered(cut.key));
    cut.ties = (missing + one - 1) / one;
  }

  // Finds the id of the last kept token at cut.key, if not all of these tokens are kept.
  __device__ void find_last_tie(Cut& cut) {
    const auto is_tie = [&](float x) { return ordered(x) == cut.key; };
    uint64_t all = 0;
    each([&](int, float x) { all += is_tie(x); });
    all = exchange_.all(all, Sum64{});
    if (all <= cut.ties) return;
    // The last id with more than all - ties tied tokens at or behind it.
    const uint64_t behind = all - cut.ties + 1;
    cut.last_tie = static_cast<int>(largest_with(
        32, behind,
        [&](int id, float x, uint32_t from) {
          return uint64_t{is_tie(x) && static_cast<uint32_t>(id) >= from};
        },
        [](uint32_t) { return uint64_t{0}; }));
  }

  // The id at which the sum of this block's weights up to it first exceeds `target`, in the thread
  // that has it; -1 in others, and if not `here`. held_sum: of the ids whose logits are held.
  __device__ int find(const Cut& cut, uint64_t target, bool here, uint64_t held_sum) {
    constexpr int kWarps = kThreads / kWarpSize;
    __shared__ uint64_t warp_sums[kWarps];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    int found = -1;
    uint64_t below = 0;       // of the rounds before
    if (!here) return found;  // the whole block
    logits_.for_each([&](int i, const float(&x)[kEight]) {
      const uint64_t sum = logits_.are_held(i) ? held_sum : kept_weights(cut, i, x);
      uint64_t through = sum;  // of this warp's lanes up to this one
#pragma unroll
      for (int offset = 1; offset < kWarpSize; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      if (lane == kWarpSize - 1) warp_sums[warp] = through;
      __syncthreads();
      const uint64_t theirs = lane < kWarps ? warp_sums[lane] : 0;
      uint64_t mine = below + through - sum + warp_reduce(lane < warp ? theirs : 0, Sum64{});
      below += warp_reduce(theirs, Sum64{});
      __syncthreads();
      if (target < mine || target >= mine + sum) return;
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        if (i + e < logits_.end && found < 0) {
          mine += kept_weight(cut, i + e, x[e]);
          if (target < mine) found = i + e;
        }
      }
    });
    return found;
  }

  const RowLogits<T, kThreads>& logits_;
  const SampleOptions& options_;
  Exchange<kThreads>& exchange_;
  float largest_ = 0.0f, inverse_ = 0.0f;
};

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen,
                  const T* logits, int B, int V) {
  __shared__ typename Exchange<kThreads>::Memory memory;
  const int blocks = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int b = static_cast<int>(blockIdx.x) / blocks;
  // A kernel before the previous one wrote the row.
  DecodeRow& row = rows[b];
  __shared__ alignas(SampleOptions) char options_memory[sizeof(SampleOptions)];
  auto& options = reinterpret_cast<SampleOptions&>(options_memory);
  if (threadIdx.x == 0) options = row.options;
  __syncthreads();
  const uint64_t least = share_of(kWeightOne, options.min_p), posted = row.posted;
  const uint64_t drawn = row.drawn;
  const int length = row.length;
  const bool active = row.active != 0;
  const uint32_t u = uniform_bits(options.seed, drawn);
  wait_for_previous();
  const auto finish = [&](int token) {
    tokens[b] = token < 0 ? 0 : token;
    results[static_cast<int>(posted % kResultSlots) * B + b] = token;
    row.posted = posted + 1;
  };
  if (!active) {
    if (rank == 0 && threadIdx.x == 0) finish(-1);
    return;
  }
  uint32_t* const row_seen = seen + static_cast<int64_t>(b) * ceil_div(V, 32);
  const int part = static_cast<int>(ceil_div(V, blocks * kEight)) * kEight;
  const T* const row_logits = logits + static_cast<int64_t>(b) * V;
  RowLogits<T, kThreads> mine{row_logits,
                              reinterpret_cast<const uint8_t*>(row_seen),
                              options.repetition_penalty,
                              min(V, rank * part),
                              min(V, rank * part + part),
                              V,
                              reinterpret_cast<uintptr_t>(row_logits) % 16 == 0};
  mine.hold();
  Exchange<kThreads> exchange(memory);
  RowSearch<T, kThreads> search(mine, options, exchange);
  const bool greedy = options.temperature == 0.0f;
  int token = greedy ? search.greedy() : search.draw(u, least);
  if (greedy && (rank != 0 || threadIdx.x != 0)) token = -1;
  if (token >= 0) {
    finish(token);
    atomicOr(&row_seen[token / 32], 1u << (token % 32));  // nothing waits for the old word
    row.drawn = drawn + 1;
    row.length = length + 1;
  }
  cluster_barrier();  // no block exits while others read its shared memory
}

}  // namespace

template <class T>
void sample(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen, const T* logits,
            int64_t B, int64_t V, Stream stream) {
  QUERN_CHECK(V <= INT32_MAX - kCluster * kMostThreads * kEight, "sample: the vocabulary has ", V,
              " tokens, expected below 2^31");
  // Few threads if they hold the whole row: barriers are cheaper among them.
  constexpr int kFewThreads = 256;
  const bool few = V <= kCluster * kFewThreads * kEight;
  const auto kernel = few ? sample_kernel<T, kFewThreads> : sample_kernel<T, kMostThreads>;
  const bool hopper = has_hopper_code(kernel);
  const LaunchOptions options{hopper ? kCluster : 1, hopper};
  launch(options, kernel, one_block_each(B * options.cluster),
         dim3(few ? kFewThreads : kMostThreads), 0, stream, tokens, results, rows, seen, logits,
         static_cast<int>(B), static_cast<int>(V));
}

template decltype(sample<float>) sample<float>;
template decltype(sample<bfloat16>) sample<bfloat16>;

}  // namespace quern::kernels::cuda
