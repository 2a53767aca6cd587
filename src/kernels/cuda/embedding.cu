// Rows of a table (V, C) by n token ids; bound by memory. The backward sorts the token positions by
// id, so that equal ids are adjacent in the order of the tokens. The tokens of an id are cut into
// pieces, counted from its first; one warp sums a piece in the order of the tokens. The first piece
// goes into dw. The others go to scratch and are added in order: a frequent token does not delay
// the rest, and a row's bits depend on its own tokens alone. No float atomics.
#include "kernels/embedding.h"

#include "kernels/copy.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/stable_sort.h"

namespace quern::kernels::cuda {

namespace {

constexpr int kWarps = 8;  // rows a block of the forward copies at a time
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kPiece = kEmbeddingPiece;
constexpr int kPlaces = 16;          // a warp of the backward sums the pieces that begin in these
constexpr int kSumWarps = 4;         // slices of columns a block of the backward sums
constexpr int kAddWarps = 8;         // and a block that adds pieces
constexpr int kPiecesInFlight = 16;  // loads in flight while pieces are added

// One warp a row, W columns a lane; W divides C.
template <int W, class TY, class TW>
__global__ void forward_kernel(TY* y, const TW* w, const int32_t* ids, int64_t n, int64_t V,
                               int64_t C) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; i < n; i += step) {
    const int64_t id = ids[i];
    const bool valid = id >= 0 && id < V;
    for (int64_t c = threadIdx.x * W; c < C; c += kWarpSize * W) {
      float v[W];
      if (valid) {
        load_vec(v, w + id * C + c);
      } else {
#pragma unroll
        for (int j = 0; j < W; ++j) v[j] = NAN;
      }
      store_vec(y + i * C + c, v);
    }
  }
}

// The first sorted place that holds `id`, which place `last` also holds; 32 lanes search.
__device__ int64_t first_place(const int32_t* keys, int64_t last, int32_t id) {
  int64_t begin = 0, end = last;  // it lies in [begin, end], and keys[end] == id
  while (begin < end) {
    const int64_t step = ceil_div(end - begin, kWarpSize);
    const int64_t at = begin + threadIdx.x * step;
    const unsigned equal = __ballot_sync(kAllLanes, keys[at < end ? at : end] == id);
    const int hit = equal == 0 ? kWarpSize : __ffs(static_cast<int>(equal)) - 1;
    const int64_t after = hit == 0 ? begin : begin + (hit - 1) * step + 1;
    if (begin + hit * step < end) end = begin + hit * step;
    begin = after;
  }
  return begin;
}

// Sorted places [base, base + 32) of a warp, one a lane, and where pieces begin among them.
struct Window {
  int32_t key, position;  // of this lane's place; the key V past the end
  unsigned heads;         // places whose id differs from the one before: its first piece begins
  unsigned starts;        // places where any piece begins
};

__device__ __forceinline__ Window load_window(const int32_t* keys, const int32_t* order,
                                              int64_t base, int64_t n, int64_t V) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t place = base + lane;
  Window w;
  w.key = place < n ? keys[place] : static_cast<int32_t>(V);
  w.position = place < n ? order[place] : 0;
  const int32_t left = place > 0 && place <= n ? keys[place - 1] : -1;
  w.heads = __ballot_sync(kAllLanes, w.key != left);
  w.starts = w.heads;
  if ((w.heads & 1) == 0) {  // pieces of an id that begins before the window
    const int32_t id = __shfl_sync(kAllLanes, w.key, 0);
    const int64_t past = base - first_place(keys, base, id);
    const int next = static_cast<int>((kPiece - past % kPiece) % kPiece);
    const int reach = w.heads == 0 ? kWarpSize : __ffs(static_cast<int>(w.heads)) - 1;
    if (next < reach) w.starts |= 1u << next;
  }
  return w;
}

// Warp (p, s) sums slice s, W columns a lane, of the pieces that begin in sorted places [kPlaces p,
// kPlaces (p + 1)). Places of ids outside [0, V) hold the key V and come last. W divides C.
template <int W, class T>
__global__ void __launch_bounds__(kWarpSize* kSumWarps)
    sum_pieces_kernel(float* dw, float* pieces, const T* dy, const int32_t* keys,
                      const int32_t* order, int64_t n, int64_t V, int64_t C, bool add) {
  constexpr int kRows = W == 8 ? 4 : 8;  // of dy, and of dw, in flight at a time
  const int64_t slice = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  if (slice * kWarpSize * W >= C) return;
  int64_t c = (slice * kWarpSize + threadIdx.x) * W;
  const bool writes = c < C;
  if (!writes) c = 0;  // reads with the others
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kPlaces;
  const Window window = load_window(keys, order, base, n, V);
  const unsigned counts = __ballot_sync(kAllLanes, window.key < V);
  const unsigned mine = window.starts & counts & ((1u << kPlaces) - 1);
  if (mine == 0) return;

  // The last piece ends where the next begins, perhaps beyond the window.
  const int first = __ffs(static_cast<int>(mine)) - 1;
  const int last = kWarpSize - 1 - __clz(static_cast<int>(mine));
  const unsigned later = window.starts & ~((2u << last) - 1);
  int end = __ffs(static_cast<int>(later)) - 1;
  int32_t beyond = 0;  // positions of the places after the window
  if (later == 0) {
    const int32_t id = __shfl_sync(kAllLanes, window.key, kWarpSize - 1);
    const int64_t place = base + kWarpSize + threadIdx.x;
    const bool same = static_cast<int>(threadIdx.x) < last && place < n && keys[place] == id;
    if (same) beyond = order[place];
    end = kWarpSize + __popc(__ballot_sync(kAllLanes, same));  // equal keys are neighbours
  }

  float sum[W];
  float* out = nullptr;  // of the piece that is being summed
  for (int row = first; row < end; row += kRows) {
    float grad[kRows][W], before[kRows][W];
    float* begun[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const int r = row + u < end ? row + u : end - 1, lane = r % kWarpSize;
      const int32_t near = __shfl_sync(kAllLanes, window.position, lane);
      const int32_t far = __shfl_sync(kAllLanes, beyond, lane);
      const int32_t id = __shfl_sync(kAllLanes, window.key, lane);
      const bool head = (window.heads >> lane & 1) != 0;
      const bool starts = row + u < kWarpSize && row + u < end && (window.starts >> lane & 1) != 0;
      begun[u] = nullptr;
      if (starts) begun[u] = head ? dw + id * C + c : pieces + (base + r) / kPiece * C + c;
#pragma unroll
      for (int e = 0; e < W; ++e) before[u][e] = 0.0f;
      load_vec(grad[u], dy + (r < kWarpSize ? near : far) * C + c);
      if (starts && head && add) load_vec(before[u], begun[u]);
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (begun[u] != nullptr) {
        if (out != nullptr && writes) store_vec(out, sum);
        out = begun[u];
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] = before[u][e];
      }
#pragma unroll
      for (int e = 0; e < W; ++e) {  // adding -0 leaves every sum as it is
        sum[e] += row + u < end ? grad[u][e] : -0.0f;
      }
    }
  }
  if (writes) store_vec(out, sum);
}

// dw += the pieces after the first, in order, of the id whose second piece begins in sorted places
// [32 (p + 1), 32 (p + 2)), if one does. Pieces after the first begin 32 or more apart, so each
// such window holds at most one. The piece that begins in window i is row i of `pieces`.
template <int W>
__global__ void __launch_bounds__(kWarpSize* kAddWarps, 2)
    add_pieces_kernel(float* dw, const float* pieces, const int32_t* keys, int64_t n, int64_t V,
                      int64_t C) {
  const int64_t slice = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  if (slice * kWarpSize * W >= C) return;
  int64_t c = (slice * kWarpSize + threadIdx.x) * W;
  const bool writes = c < C;
  const int64_t window = static_cast<int64_t>(blockIdx.x) + 1;
  const int64_t place = window * kPiece + threadIdx.x;
  bool second = place < n && keys[place] < V && keys[place - kPiece] == keys[place];
  if (second && place > kPiece) second = keys[place - kPiece - 1] != keys[place];
  const unsigned found = __ballot_sync(kAllLanes, second);
  if (found == 0) return;
  const int64_t begin = window * kPiece + __ffs(static_cast<int>(found)) - 1;
  const int32_t id = keys[begin];
  if (!writes) c = 0;  // reads with the others, and writes nothing
  float sum[W];
  load_vec(sum, dw + id * C + c);
  for (int64_t piece = 0, more = kWarpSize; more == kWarpSize; piece += kWarpSize) {
    const int64_t at = begin + (piece + threadIdx.x) * kPiece;
    more = __popc(__ballot_sync(kAllLanes, at < n && keys[at < n ? at : begin] == id));
    for (int64_t done = 0; done < more; done += kPiecesInFlight) {
      float part[kPiecesInFlight][W];
#pragma unroll
      for (int u = 0; u < kPiecesInFlight; ++u) {  // loads are unconditional, so that none waits
        const int64_t row = done + u < more ? done + u : more - 1;
        load_vec(part[u], pieces + (window + piece + row) * C + c);
      }
#pragma unroll
      for (int u = 0; u < kPiecesInFlight; ++u) {
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] += done + u < more ? part[u][e] : -0.0f;
      }
    }
  }
  if (writes) store_vec(dw + id * C + c, sum);
}

// A block (32, warps) for each of `tiles` and each `warps` slices of C columns, W a lane.
struct SliceGrid {
  dim3 blocks, block;
};
SliceGrid slice_grid(int64_t tiles, int64_t C, int W, int most_warps) {
  const int64_t slices = ceil_div(C, kWarpSize * W);
  const int64_t warps = slices < most_warps ? slices : most_warps;
  const int64_t groups = ceil_div(slices, warps);
  QUERN_CHECK(groups <= kMaxGridYZ, "embedding: width is ", C, ", expected at most ",
              int64_t{kMaxGridYZ} * most_warps * kWarpSize * W);
  return {dim3(one_block_each(tiles).x, static_cast<unsigned>(groups)),
          dim3(kWarpSize, static_cast<unsigned>(warps))};
}

template <int W, class T>
void sum_sorted(float* dw, float* pieces, const T* dy, const SortedIds& sorted, int64_t n,
                int64_t V, int64_t C, bool add, Stream stream) {
  const SliceGrid sums = slice_grid(ceil_div(n, kPlaces), C, W, kSumWarps);
  launch(sum_pieces_kernel<W, T>, sums.blocks, sums.block, 0, stream, dw, pieces, dy, sorted.keys,
         sorted.order, n, V, C, add);
  if (n <= kPiece) return;
  constexpr int kAddWidth = W == 1 ? 1 : kVecSize<float>;
  const SliceGrid adds = slice_grid(ceil_div(n, kPiece) - 1, C, kAddWidth, kAddWarps);
  launch(add_pieces_kernel<kAddWidth>, adds.blocks, adds.block, 0, stream, dw, pieces, sorted.keys,
         n, V, C);
}

}  // namespace

template <class TY, class TW>
void embedding_forward(TY* y, const TW* w, const int32_t* ids, int64_t n, int64_t V, int64_t C,
                       Stream stream) {
  constexpr int N = kVecSize < TY >> kVecSize<TW> ? kVecSize<TY> : kVecSize<TW>;
  const bool grouped = C % N == 0 && aligned16({y, w});
  launch(grouped ? forward_kernel<N, TY, TW> : forward_kernel<1, TY, TW>,
         grid_stride_blocks(n, kWarps), dim3(kWarpSize, kWarps), 0, stream, y, w, ids, n, V, C);
}

// scratch: the sums of the pieces, then the memory of the sort.
template <class T>
void embedding_backward(acc_t<T>* dw, const T* dy, const int32_t* ids, int64_t n, int64_t V,
                        int64_t C, bool add, void* scratch, Stream stream) {
  if (!add) fill(dw, DType::f32, V * C, 0.0, stream);
  if (n == 0 || V == 0 || C == 0) return;
  auto* const pieces = static_cast<float*>(scratch);
  const SortedIds sorted = stable_sort_ids(ids, n, V, pieces + ceil_div(n, kPiece) * C, stream);
  constexpr int W = kVecSize<T>;
  const bool vectors = C % W == 0 && aligned16({dw, dy, scratch});
  const auto sum = vectors ? sum_sorted<W, T> : sum_sorted<1, T>;
  sum(dw, pieces, dy, sorted, n, V, C, add, stream);
}

template decltype(embedding_forward<float, float>) embedding_forward<float, float>;
template decltype(embedding_forward<bfloat16, bfloat16>) embedding_forward<bfloat16, bfloat16>;
template decltype(embedding_forward<float, bfloat16>) embedding_forward<float, bfloat16>;

template decltype(embedding_backward<float>) embedding_backward<float>;
template decltype(embedding_backward<bfloat16>) embedding_backward<bfloat16>;

}  // namespace quern::kernels::cuda
