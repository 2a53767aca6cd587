// The weights of decode_token.cu: the division of each product over blocks and warps, and a block's
// stream of weights. A block's reads are known from the start for the whole token. So a few
// separate warps always have as many of them in flight as fit in shared memory, across the ends of
// products and of the model's blocks. While the other warps wait for values from other blocks,
// their weights arrive.
#pragma once

#include "kernels/cuda/decode/decode_linear.cuh"
#include "kernels/cuda/primitives/bulk_copy.cuh"
#include "kernels/cuda/primitives/tile_ring.cuh"
#include "kernels/decode_token.h"

namespace quern::kernels::cuda {

// The products of a token, in the order of a block of the model; `head` follows the last block.
enum class TokenProduct : int { qkv, output, gate_up, down, head };
inline constexpr int kFetchWarps = 4;  // a warpgroup, which gives its registers away
inline constexpr int kTokenProducts = 5, kLayerProducts = 4;

// One product, the same for every layer. `units` from `first` on: all, or those of a block of the
// grid. A unit gives two neighbouring outputs: one pair of rows of w, for SwiGLU two.
struct TokenLinear {
  int in, out;        // of w
  int steps, chunks;  // of a row
  int parts;          // warps that share a pair
  int first, units;
  bool swiglu;

  __host__ __device__ int outputs() const { return swiglu ? out / 2 : out; }
  __host__ __device__ int pairs() const { return swiglu ? 2 * units : units; }

  __host__ __device__ TokenLinear of_block(unsigned block, unsigned blocks) const {
    const auto all = static_cast<unsigned>(units);  // at most 2^24: see plan_token
    TokenLinear mine = *this;
    mine.first = static_cast<int>(all * block / blocks);
    mine.units = static_cast<int>(all * (block + 1) / blocks) - mine.first;
    return mine;
  }
};

inline TokenLinear token_linear(const DecodeToken& t, TokenProduct product) {
  TokenLinear linear{};
  const auto set = [&](int64_t in, int64_t out) {
    linear.in = static_cast<int>(in);
    linear.out = static_cast<int>(out);
  };
  switch (product) {
    case TokenProduct::qkv: set(t.C, (t.H + 2 * t.Hk) * t.D); break;
    case TokenProduct::output: set(t.H * t.D, t.C); break;
    case TokenProduct::gate_up: set(t.C, 2 * t.F); break;
    case TokenProduct::down: set(t.F, t.C); break;
    case TokenProduct::head: set(t.C, t.V); break;
  }
  linear.swiglu = product == TokenProduct::gate_up;
  const int64_t bytes = linear.in * static_cast<int64_t>(sizeof(bfloat16));
  linear.steps = static_cast<int>(ceil_div(bytes, kStepBytes));
  linear.chunks = static_cast<int>(ceil_div(bytes, 16));
  linear.parts = linear_parts(bytes, linear.out);
  linear.units = static_cast<int>(ceil_div(linear.outputs(), 2));
  return linear;
}

// A warp's part of one product: a share of every pair of its team; shares differ by one step at
// most. Rows are those of w.
struct WarpShare {
  int row = 0, next_row = 0;  // the first pair's first row, and how far it is to the next pair's
  int begin = 0, count = 0;   // steps of a row
  int pairs = 0;

  __device__ __forceinline__ WarpShare(const TokenLinear& linear, int warp, int warps) {
    const int part = warp % linear.parts, team = warp / linear.parts;
    const int teams = warps / linear.parts, rows = linear.swiglu ? 1 : kPair;
    row = 2 * linear.first + team * rows;
    next_row = teams * rows;
    begin = linear.steps * part / linear.parts;
    count = linear.steps * (part + 1) / linear.parts - begin;
    pairs = linear.pairs() > team ? (linear.pairs() - team + teams - 1) / teams : 0;
  }
};

// Tables in shared memory that every warp reads.
struct TokenTables {
  const DecodeBlock* blocks;   // (layers)
  const TokenLinear* linears;  // (kTokenProducts)
  const WarpShare* shares;     // (kTokenProducts, kLinearWarps)
};

// A ring for each of the kLinearWarps warps that multiply. Each of its kSlots slots has up to
// kSlotSteps steps of a pair, first row and second row.
template <int kSlots, int kSlotSteps>
struct WeightRing {
  static constexpr int kSteps = kSlotSteps;
  using Place = RingPlace<kSlots>;
  static constexpr int kRowBytes = kSlotSteps * kStepBytes, kSlotBytes = kPair * kRowBytes;
  static constexpr int kBytes = kLinearWarps * kSlots * (kSlotBytes + 2 * sizeof(MBarrier));

  char* slots;
  MBarrier *full, *empty;

  // `memory`: kBytes, aligned to 16.
  __device__ __forceinline__ explicit WeightRing(char* memory)
      : slots(memory),
        full(reinterpret_cast<MBarrier*>(memory + kLinearWarps * kSlots * kSlotBytes)),
        empty(full + kLinearWarps * kSlots) {}

  // Called by threads numbered from 0, at least one a slot; then the block synchronizes.
  __device__ __forceinline__ void init(int thread) const {
    if (thread >= kLinearWarps * kSlots) return;
    full[thread].init(1);
    empty[thread].init(1);
    barriers_ready();
  }
  __device__ __forceinline__ int index(int warp, const Place& place) const {
    return warp * kSlots + place.stage;
  }
};

// Run by separate warps; this is number `fetcher`. Loads all weights of a token in the order of
// their use. A lane fills the ring of one multiplying warp. Several warps fetch, since a warp takes
// some 85 cycles to issue a copy.
template <class Ring>
__device__ __forceinline__ void stream_weights(const Ring& ring, const TokenTables& tables,
                                               const DecodeToken& t, int fetcher) {
  constexpr int kEach = kLinearWarps / kFetchWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = fetcher * kEach + lane;
  if (lane >= kEach) return;
  typename Ring::Place place;
  for (int number = 0; number <= t.layers * kLayerProducts; ++number) {
    const bool last = number == t.layers * kLayerProducts;
    const auto which =
        last ? TokenProduct::head : static_cast<TokenProduct>(number % kLayerProducts);
    const DecodeBlock& block = tables.blocks[last ? 0 : number / kLayerProducts];
    const bfloat16* const w = which == TokenProduct::qkv       ? block.qkv
                              : which == TokenProduct::output  ? block.output
                              : which == TokenProduct::gate_up ? block.gate_up
                              : which == TokenProduct::down    ? block.down
                                                               : t.head;
    const TokenLinear& linear = tables.linears[static_cast<int>(which)];
    const WarpShare& share = tables.shares[static_cast<int>(which) * kLinearWarps + warp];
    const int row_bytes = linear.in * static_cast<int>(sizeof(bfloat16));
    int row = share.row;
    for (int pair = 0; pair < share.pairs; ++pair, row += share.next_row) {
      const int second = linear.swiglu ? row + linear.out / 2 : min(row + 1, linear.out - 1);
      const char* const rows[kPair] = {
          reinterpret_cast<const char*>(w + int64_t{row} * linear.in),
          reinterpret_cast<const char*>(w + int64_t{second} * linear.in)};
      for (int s = 0; s < share.count; s += Ring::kSteps) {
        const int from = (share.begin + s) * kStepBytes;
        const int bytes = min(min(Ring::kSteps, share.count - s) * kStepBytes, row_bytes - from);
        const int slot = ring.index(warp, place);
        ring.empty[slot].wait(place.parity ^ 1);
        ring.full[slot].arrive_expecting(kPair * bytes);
#pragma unroll
        for (int j = 0; j < kPair; ++j) {
          load_bulk_async(ring.slots + slot * Ring::kSlotBytes + j * Ring::kRowBytes,
                          rows[j] + from, bytes, ring.full[slot]);
        }
        place.advance();
      }
    }
  }
}

}  // namespace quern::kernels::cuda
