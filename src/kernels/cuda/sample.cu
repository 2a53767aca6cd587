// The next token of each row: a cluster of blocks searches a row of logits, a contiguous part of
// the ids each, and never sorts. Thresholds of top_k and top_p are found two bits at a time in the
// order of the floats. Bound by the number of passes and of barriers: without filters three of
// each.
#include "kernels/sample.h"

#include <type_traits>

#include "kernels/common/sample_math.h"
#include "kernels/cuda/launch_hopper.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarpSize;
constexpr int kCluster = 8;  // blocks a row
constexpr int kEight = 8;    // ids a thread takes at a time

struct Sum64 {
  static __device__ uint64_t identity() { return 0; }
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Max64 {
  static __device__ uint64_t identity() { return 0; }
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// The float that ordered() made this of.
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Combines numbers over a cluster; every thread of it makes the same calls.
class Exchange {
 public:
  struct Memory {
    uint64_t warps[2][3][kWarps], block[2][3], result[2][3], before[2];
  };
  __device__ explicit Exchange(Memory& memory) : memory_(memory) {}

  template <class Op, int kCount>
  __device__ void all(uint64_t (&x)[kCount], Op op) {
    gather(x, op);
    if (threadIdx.x < kWarpSize) {  // a lane reads a block's number: all of them at once
      const int i = static_cast<int>(threadIdx.x) / kCluster;
      const uint64_t combined = over_blocks(theirs(i, i < kCount, Op::identity()), op);
      if (threadIdx.x % kCluster == 0 && i < kCount) memory_.result[turn_][i] = combined;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = memory_.result[turn_][i];
  }
  template <class Op>
  __device__ uint64_t all(uint64_t x, Op op) {
    uint64_t one[1] = {x};
    all(one, op);
    return one[0];
  }
  // The sum over all threads, and over those of the blocks before this one.
  __device__ uint64_t sum(uint64_t x, uint64_t& before) {
    uint64_t one[1] = {x};
    gather(one, Sum64{});
    if (threadIdx.x < kWarpSize) {
      const uint64_t block = theirs(0, threadIdx.x < kCluster, 0);
      const uint64_t total = over_blocks(block, Sum64{});
      const uint64_t earlier = threadIdx.x < cluster_rank() ? block : 0;
      const uint64_t earlier_sum = over_blocks(earlier, Sum64{});
      if (threadIdx.x == 0) {
        memory_.result[turn_][0] = total;
        memory_.before[turn_] = earlier_sum;
      }
    }
    __syncthreads();
    before = memory_.before[turn_];
    return memory_.result[turn_][0];
  }

 private:
  // Each block's result into its memory. The two halves of it take turns, so that nobody writes
  // what others still read.
  template <class Op, int kCount>
  __device__ void gather(uint64_t (&x)[kCount], Op op) {
    turn_ ^= 1;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint64_t combined = over_lanes(x[i], op);
      if (lane == 0) memory_.warps[turn_][i][warp] = combined;
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint64_t mine = lane < kWarps ? memory_.warps[turn_][i][lane] : Op::identity();
        const uint64_t combined = over_lanes(mine, op);
        if (lane == 0) memory_.block[turn_][i] = combined;
      }
    }
    cluster_barrier();
  }
  template <class Op>
  static __device__ uint64_t over_lanes(uint64_t x, Op op) {
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
    }
    return x;
  }
  // Number i of the block whose rank is this lane's modulo kCluster.
  __device__ uint64_t theirs(int i, bool present, uint64_t otherwise) const {
    const uint32_t rank = threadIdx.x % kCluster;
    if (!present || rank >= cluster_size()) return otherwise;
    return load_in_cluster(&memory_.block[turn_][i], rank);
  }
  // Over groups of kCluster lanes.
  template <class Op>
  static __device__ uint64_t over_blocks(uint64_t x, Op op) {
#pragma unroll
    for (int offset = kCluster / 2; offset > 0; offset /= 2) {
      x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
    }
    return x;
  }

  Memory& memory_;
  int turn_ = 0;
};

// A row of logits, of which this block has ids [begin, end).
template <class T>
struct RowLogits {
  const T* logits;      // of the row
  const uint8_t* seen;  // a bit an id
  float penalty;
  int begin, end, V;
  bool vectors;  // 8 logits from a multiple of 8 on can be read 16 bytes at a time

  // Calls body(i, x) with x[e] the penalized logit of id i + e, for this thread's ids, 8 neighbours
  // at a time; ids past the end are -inf. All threads of the block make as many calls.
  template <class Body>
  __device__ __forceinline__ void for_each(Body body) const {
    for (int first = begin; first < end; first += kThreads * kEight) {
      body(first + static_cast<int>(threadIdx.x) * kEight);
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

// Which tokens are left: those above `key`, the ones at it up to id `last_tie`, and of these the
// ones with a weight of at least `least`.
struct Cut {
  uint32_t key = 0;
  uint64_t ties = 0;  // how many at `key` are left
  int last_tie = INT32_MAX;
  uint64_t least = 0;
};

template <class T>
class RowSearch {
 public:
  __device__ RowSearch(const RowLogits<T>& logits, const SampleOptions& options, Exchange& exchange)
      : logits_(logits), options_(options), exchange_(exchange) {}

  // The likeliest token, the lowest of equal ones.
  __device__ int greedy() {
    uint64_t best = 0;
    each([&](int id, float x) {
      const uint64_t candidate = uint64_t{ordered(x)} << 32 | ~static_cast<uint32_t>(id);
      if (candidate > best) best = candidate;
    });
    best = exchange_.all(best, Max64{});
    return static_cast<int>(~static_cast<uint32_t>(best));
  }

  // The drawn token, in one thread of the cluster; -1 in the others.
  __device__ int draw(uint64_t index) {
    uint64_t largest = 0;
    each([&](int, float x) { largest = Max64{}(largest, ordered(x)); });
    largest_ = from_ordered(static_cast<uint32_t>(exchange_.all(largest, Max64{})));
    inverse_ = 1.0f / options_.temperature;
    Cut cut;
    if (options_.top_k > 0 && options_.top_k < logits_.V) keep_top_k(cut);
    if (options_.top_p < 1.0) keep_top_p(cut);
    if (cut.ties > 0) find_last_tie(cut);
    cut.least = share_of(kWeightOne, options_.min_p);
    uint64_t sum = 0, before = 0;
    each([&](int id, float x) { sum += kept_weight(cut, id, x); });
    const uint64_t total = exchange_.sum(sum, before);
    const uint64_t target = draw_below(total, options_.seed, index);
    return find(cut, target - before, target >= before);
  }

 private:
  // Calls body(id, x) for this thread's ids.
  template <class Body>
  __device__ __forceinline__ void each(Body body) const {
    logits_.for_each([&](int i) {
      float x[kEight];
      logits_.load(x, i);
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
    if (cut.key == 0 && cut.least <= 1) return weight(x);  // all are
    const uint32_t key = ordered(x);
    if (key < cut.key || (key == cut.key && id > cut.last_tie)) return 0;
    const uint64_t w = weight(x);
    return w >= cut.least ? w : 0;
  }

  // The largest number of `bits` bits for which the sum of what `measure(id, x, number)` gives, and
  // `constant(number)`, is at least `enough`. The sum falls as the number grows, and is enough at
  // 0.
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

  // With fewer than all of the tokens at cut.key left: the id of the last of them.
  __device__ void find_last_tie(Cut& cut) {
    const auto is_tie = [&](float x) { return ordered(x) == cut.key; };
    uint64_t all = 0;
    each([&](int, float x) { all += is_tie(x); });
    all = exchange_.all(all, Sum64{});
    if (all <= cut.ties) return;
    // Of the ids with more than all - ties of them at or behind: the last one.
    const uint64_t behind = all - cut.ties + 1;
    cut.last_tie = static_cast<int>(largest_with(
        32, behind,
        [&](int id, float x, uint32_t from) {
          return uint64_t{is_tie(x) && static_cast<uint32_t>(id) >= from};
        },
        [](uint32_t) { return uint64_t{0}; }));
  }

  // The id at which the sum of the weights of this block's ids up to it first exceeds `target`, in
  // the thread that has it. Not `here`: nobody does.
  __device__ int find(const Cut& cut, uint64_t target, bool here) {
    __shared__ uint64_t warp_sums[kWarps];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    int found = -1;
    uint64_t below = 0;       // of the rounds before
    if (!here) return found;  // the whole block
    logits_.for_each([&](int i) {
      float x[kEight];
      logits_.load(x, i);
      uint64_t sum = 0;
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        if (i + e < logits_.end) sum += kept_weight(cut, i + e, x[e]);
      }
      uint64_t through = sum;  // of this warp's lanes up to this one
#pragma unroll
      for (int offset = 1; offset < kWarpSize; offset *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      if (lane == kWarpSize - 1) warp_sums[warp] = through;
      __syncthreads();
      uint64_t mine = below + through - sum;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) mine += warp_sums[w];
        below += warp_sums[w];
      }
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

  const RowLogits<T>& logits_;
  const SampleOptions& options_;
  Exchange& exchange_;
  float largest_ = 0.0f, inverse_ = 0.0f;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen,
                  const T* logits, int B, int V) {
  __shared__ Exchange::Memory memory;
  const int blocks = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int b = static_cast<int>(blockIdx.x) / blocks;
  DecodeRow& row = rows[b];
  wait_for_previous();
  const auto finish = [&](int token) {
    tokens[b] = token < 0 ? 0 : token;
    results[static_cast<int>(row.posted % kResultSlots) * B + b] = token;
    ++row.posted;
  };
  if (row.active == 0) {
    if (rank == 0 && threadIdx.x == 0) finish(-1);
    return;
  }
  const SampleOptions options = row.options;
  const uint64_t drawn = row.drawn;
  uint32_t* const row_seen = seen + static_cast<int64_t>(b) * ceil_div(V, 32);
  const int part = static_cast<int>(ceil_div(V, blocks * kEight)) * kEight;
  const T* const row_logits = logits + static_cast<int64_t>(b) * V;
  const RowLogits<T> mine{row_logits,
                          reinterpret_cast<const uint8_t*>(row_seen),
                          options.repetition_penalty,
                          min(V, rank * part),
                          min(V, rank * part + part),
                          V,
                          reinterpret_cast<uintptr_t>(row_logits) % 16 == 0};
  Exchange exchange(memory);
  RowSearch<T> search(mine, options, exchange);
  const bool greedy = options.temperature == 0.0f;
  int token = greedy ? search.greedy() : search.draw(drawn);
  if (greedy && (rank != 0 || threadIdx.x != 0)) token = -1;
  if (token >= 0) {
    finish(token);
    row_seen[token / 32] |= 1u << (token % 32);
    row.drawn = drawn + 1;
    ++row.length;
  }
  cluster_barrier();  // nobody leaves while others read its shared memory
}

}  // namespace

template <class T>
void sample(int32_t* tokens, int32_t* results, DecodeRow* rows, uint32_t* seen, const T* logits,
            int64_t B, int64_t V, Stream stream) {
  QUERN_CHECK(V <= INT32_MAX - kCluster * kThreads * kEight, "sample: the vocabulary has ", V,
              " tokens, expected below 2^31");
  const auto kernel = sample_kernel<T>;
  const bool hopper = has_hopper_code(kernel);
  const LaunchOptions options{hopper ? kCluster : 1, hopper};
  launch(options, kernel, one_block_each(B * options.cluster), dim3(kThreads), 0, stream, tokens,
         results, rows, seen, logits, static_cast<int>(B), static_cast<int>(V));
}

template void sample(int32_t*, int32_t*, DecodeRow*, uint32_t*, const float*, int64_t, int64_t,
                     Stream);
template void sample(int32_t*, int32_t*, DecodeRow*, uint32_t*, const bfloat16*, int64_t, int64_t,
                     Stream);

}  // namespace quern::kernels::cuda
