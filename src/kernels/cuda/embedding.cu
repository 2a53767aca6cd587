// Rows of a table by token id; bound by memory. The backward sorts the token positions by id (a
// stable radix sort, 8 bits a pass, see stable_sort.cuh), so that equal ids lie together in the
// order of the tokens; then each row of dw is summed by one block in that order. No float atomics.
#include "kernels/embedding.h"

#include "kernels/copy.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/stable_sort.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kWarps = 8;          // rows a block of the forward copies at a time
constexpr int kColumns = 128;      // of dw that a block sums
constexpr int kRowsInFlight = 16;  // loads under way while a row is summed

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

// Block (p, q) sums columns [q kColumns, ...) of the row that sorted place p begins, if it begins
// one. Places of ids outside [0, V) hold the key V and come last.
template <class T>
__global__ void backward_kernel(float* dw, const T* dy, const int32_t* keys, const int32_t* order,
                                int64_t n, int64_t V, int64_t C, bool add) {
  const int64_t begin = blockIdx.x;
  const int32_t id = keys[begin];
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kColumns + threadIdx.x;
  if (id >= V || (begin > 0 && keys[begin - 1] == id) || c >= C) return;

  float sum = add ? dw[id * C + c] : 0.0f;
  bool more = true;
  for (int64_t p = begin; more; p += kRowsInFlight) {
    float grad[kRowsInFlight];
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {  // -0 is the number that a sum does not notice
      const bool mine = p + u < n && keys[p + u] == id;
      grad[u] = mine ? to_float(dy[order[p + u] * C + c]) : -0.0f;
    }
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) sum += grad[u];
    more = p + kRowsInFlight < n && keys[p + kRowsInFlight] == id;
  }
  dw[id * C + c] = sum;
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

int64_t embedding_backward_scratch(int64_t n, int64_t, Stream) {
  return stable_sort_scratch(n);
}

template <class T>
void embedding_backward(acc_t<T>* dw, const T* dy, const int32_t* ids, int64_t n, int64_t V,
                        int64_t C, bool add, void* scratch, Stream stream) {
  if (!add) fill(dw, DType::f32, V * C, 0.0, stream);
  if (n == 0 || V == 0 || C == 0) return;
  const int64_t slices = ceil_div(C, kColumns);
  QUERN_CHECK(slices <= kMaxGridYZ, "embedding: width is ", C, ", expected at most ",
              int64_t{kMaxGridYZ} * kColumns);
  const SortedIds sorted = stable_sort_ids(ids, n, V, scratch, stream);
  launch(backward_kernel<T>, dim3(one_block_each(n).x, static_cast<unsigned>(slices)), kColumns, 0,
         stream, dw, dy, sorted.keys, sorted.order, n, V, C, add);
}

#define QUERN_INSTANTIATE_FORWARD(TY, TW)                                                   \
  template void embedding_forward<TY, TW>(TY*, const TW*, const int32_t*, int64_t, int64_t, \
                                          int64_t, Stream);
QUERN_INSTANTIATE_FORWARD(float, float)
QUERN_INSTANTIATE_FORWARD(bfloat16, bfloat16)
QUERN_INSTANTIATE_FORWARD(float, bfloat16)
#undef QUERN_INSTANTIATE_FORWARD

#define QUERN_INSTANTIATE_BACKWARD(T)                                                              \
  template void embedding_backward<T>(float*, const T*, const int32_t*, int64_t, int64_t, int64_t, \
                                      bool, void*, Stream);
QUERN_INSTANTIATE_BACKWARD(float)
QUERN_INSTANTIATE_BACKWARD(bfloat16)
#undef QUERN_INSTANTIATE_BACKWARD

}  // namespace quern::kernels::cuda
