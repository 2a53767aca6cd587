// Fills, copies and conversions of n elements or strided arrays; bound by memory. A copy between
// equal dtypes moves words of up to 16 bytes. The frequent contiguous conversions have kernels of
// their own; a kernel that takes dtypes at run time does the rest.
#include "kernels/copy.h"

#include <cstring>

#include "base/round_to_odd.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kDst = 0, kSrc = 1;

__device__ __forceinline__ uint32_t global_thread() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ uint32_t global_threads() {
  return gridDim.x * blockDim.x;
}

template <class Word>
__global__ void copy_words(Word* dst, const Word* src, const __grid_constant__ StridedIndex<2> at) {
  for (uint32_t i = global_thread(); i < at.count; i += global_threads()) {
    int64_t offset[2];
    at.offsets(i, offset);
    dst[offset[kDst]] = src[offset[kSrc]];
  }
}

// A number of any dtype, held exactly.
struct AnyValue {
  bool integer;
  int64_t i;
  double f;
};

template <class T>
__device__ AnyValue integer_value(const void* p, int64_t at) {
  return {true, static_cast<int64_t>(static_cast<const T*>(p)[at]), 0.0};
}
template <class T>
__device__ AnyValue float_value(const void* p, int64_t at) {
  return {false, 0, static_cast<double>(to_float(static_cast<const T*>(p)[at]))};
}

__device__ AnyValue load_any(const void* p, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::f32: return float_value<float>(p, at);
    case DType::bf16: return float_value<bfloat16>(p, at);
    case DType::f16: return float_value<float16>(p, at);
    case DType::f64: return {false, 0, static_cast<const double*>(p)[at]};
    case DType::i32: return integer_value<int32_t>(p, at);
    case DType::i64: return integer_value<int64_t>(p, at);
    case DType::u16: return integer_value<uint16_t>(p, at);
    case DType::u8: return integer_value<uint8_t>(p, at);
    case DType::boolean: return {true, static_cast<const uint8_t*>(p)[at] != 0, 0.0};
  }
  return {};
}

template <class T>
__device__ void store_number(void* p, int64_t at, const AnyValue& x) {
  int64_t i = x.i;
  if constexpr (std::is_same_v<T, int32_t>) {
    i = max(int64_t{INT32_MIN}, min(int64_t{INT32_MAX}, i));
  }
  static_cast<T*>(p)[at] = x.integer ? static_cast<T>(i) : static_cast<T>(x.f);
}
// A float whose last bit records whether bits were lost, so that rounding it again to 16 bits
// equals rounding x directly ("round to odd").
__device__ float round_to_odd(double x) {
  const float cut = __double2float_rz(x);
  return static_cast<double>(cut) == x ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}
template <class T>
__device__ void store_half(void* p, int64_t at, const AnyValue& x) {
  static_cast<T*>(p)[at] = from_float<T>(round_to_odd(x.integer ? static_cast<double>(x.i) : x.f));
}

__device__ void store_any(void* p, DType dtype, int64_t at, const AnyValue& x) {
  switch (dtype) {
    case DType::f32: return store_number<float>(p, at, x);
    case DType::bf16: return store_half<bfloat16>(p, at, x);
    case DType::f16: return store_half<float16>(p, at, x);
    case DType::f64: return store_number<double>(p, at, x);
    case DType::i32: return store_number<int32_t>(p, at, x);
    case DType::i64: return store_number<int64_t>(p, at, x);
    case DType::u16: return store_number<uint16_t>(p, at, x);
    case DType::u8: return store_number<uint8_t>(p, at, x);
    case DType::boolean: static_cast<uint8_t*>(p)[at] = x.integer ? x.i != 0 : x.f != 0.0; return;
  }
}

__global__ void convert_any(void* dst, DType dst_type, const void* src, DType src_type,
                            const __grid_constant__ StridedIndex<2> at) {
  for (uint32_t i = global_thread(); i < at.count; i += global_threads()) {
    int64_t offset[2];
    at.offsets(i, offset);
    store_any(dst, dst_type, offset[kDst], load_any(src, src_type, offset[kSrc]));
  }
}

template <class D, class S>
__global__ void accumulate_kernel(D* dst, const S* src, int64_t n, bool add, bool aligned) {
  constexpr int N = kVecSize < D >> kVecSize<S> ? kVecSize<D> : kVecSize<S>;
  for_each_vec<N>(n, aligned, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float x[W];
    load_vec(x, src + i);
    if (add) {
      float sum[W];
      load_vec(sum, dst + i);
#pragma unroll
      for (int j = 0; j < W; ++j) x[j] += sum[j];
    }
    store_vec(dst + i, x);
  });
}

template <class D, class S>
void launch_accumulate(void* dst, const void* src, int64_t n, bool add, Stream stream) {
  constexpr int N = kVecSize < D >> kVecSize<S> ? kVecSize<D> : kVecSize<S>;
  launch(accumulate_kernel<D, S>, grid_stride_blocks(n, kThreads * N), kThreads, 0, stream,
         static_cast<D*>(dst), static_cast<const S*>(src), n, add, aligned16({dst, src}));
}

// dst[0..bytes) = an 8-byte pattern, repeated; byte j of it goes to addresses that are j modulo 8.
__global__ void fill_bytes(uint8_t* dst, int64_t bytes, uint64_t pattern) {
  const auto address = reinterpret_cast<uintptr_t>(dst);
  const int64_t to_boundary = static_cast<int64_t>((16 - address % 16) % 16);
  const int64_t head = to_boundary < bytes ? to_boundary : bytes;
  const int64_t words = (bytes - head) / 16;
  auto* const middle = reinterpret_cast<Packed<uint64_t, 2>*>(dst + head);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < words; i += threads) middle[i] = {pattern, pattern};
  for (int64_t i = thread; i < bytes - 16 * words; i += threads) {  // head and tail
    const int64_t at = i < head ? i : i + 16 * words;
    dst[at] = static_cast<uint8_t>(pattern >> ((address + static_cast<uintptr_t>(at)) % 8 * 8));
  }
}

template <class T>
uint64_t repeated(T value) {  // the element's bits, as often as they fit
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  for (size_t width = 8 * sizeof(T); width < 64; width *= 2) bits |= bits << width;
  return bits;
}

uint64_t fill_pattern(DType dtype, double value) {
  switch (dtype) {
    case DType::f32: return repeated(static_cast<float>(value));
    case DType::bf16: return repeated(bfloat16(quern::round_to_odd(value)));
    case DType::f16: return repeated(float16(quern::round_to_odd(value)));
    case DType::f64: return repeated(value);
    case DType::i32: return repeated(static_cast<int32_t>(value));
    case DType::i64: return repeated(static_cast<int64_t>(value));
    case DType::u16: return repeated(static_cast<uint16_t>(value));
    case DType::u8: return repeated(static_cast<uint8_t>(value));
    case DType::boolean: return repeated(static_cast<uint8_t>(value != 0.0));
  }
  fail(cat("fill: unknown dtype ", static_cast<int>(dtype)));
}

template <class Word>
void launch_words(void* dst, const void* src, const Strided<2>& layout, Stream stream) {
  for_each_part(layout, [&](const StridedIndex<2>& at) {
    launch(copy_words<Word>, grid_stride_blocks(at.count, kThreads), kThreads, 0, stream,
           static_cast<Word*>(dst), static_cast<const Word*>(src), at);
  });
}

// Copies elements of `size` bytes by the widest words that the layout allows.
void copy_same(void* dst, const void* src, int size, Strided<2> layout, Stream stream) {
  const uintptr_t address[2] = {reinterpret_cast<uintptr_t>(dst), reinterpret_cast<uintptr_t>(src)};
  int word = 16;
  for (; word > size; word /= 2) {
    if (group_by(word / size, layout, address, {word, word}, false)) break;
  }
  for (int k = 0; k < 2; ++k) {  // strides in words
    for (int d = 0; d < layout.ndim; ++d) layout.strides[k][d] /= word / size;
  }
  switch (word) {
    case 1: return launch_words<uint8_t>(dst, src, layout, stream);
    case 2: return launch_words<uint16_t>(dst, src, layout, stream);
    case 4: return launch_words<uint32_t>(dst, src, layout, stream);
    case 8: return launch_words<uint64_t>(dst, src, layout, stream);
    case 16: return launch_words<Packed<uint64_t, 2>>(dst, src, layout, stream);
    default: fail(cat("copy: element of ", size, " bytes, expected 1, 2, 4 or 8"));
  }
}

// Runs the contiguous conversions of training. Returns whether this is one of them.
bool convert_contiguous(void* dst, DType dst_type, const void* src, DType src_type, int64_t n,
                        Stream stream) {
  const auto is = [&](DType d, DType s) { return dst_type == d && src_type == s; };
  if (is(DType::f32, DType::bf16)) {
    launch_accumulate<float, bfloat16>(dst, src, n, false, stream);
  } else if (is(DType::bf16, DType::f32)) {
    launch_accumulate<bfloat16, float>(dst, src, n, false, stream);
  } else if (is(DType::f32, DType::f16)) {
    launch_accumulate<float, float16>(dst, src, n, false, stream);
  } else if (is(DType::f16, DType::f32)) {
    launch_accumulate<float16, float>(dst, src, n, false, stream);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void copy(void* dst, DType dst_type, const void* src, DType src_type, const StridedCopy& layout,
          Stream stream) {
  Strided<2> strided;
  strided.ndim = layout.ndim;
  for (int d = 0; d < layout.ndim; ++d) {
    strided.shape[d] = layout.shape[d];
    strided.strides[kDst][d] = layout.dst_strides[d];
    strided.strides[kSrc][d] = layout.src_strides[d];
  }
  const int64_t n = strided.numel();
  if (n == 0) return;
  strided = simplified(strided);
  const bool contiguous =
      strided.ndim == 1 && strided.strides[kDst][0] == 1 && strided.strides[kSrc][0] == 1;
  if (dst_type == src_type) {
    const size_t size = size_of(dst_type);
    if (!contiguous) return copy_same(dst, src, static_cast<int>(size), strided, stream);
    check_cuda(cudaMemcpyAsync(dst, src, static_cast<size_t>(n) * size, cudaMemcpyDeviceToDevice,
                               static_cast<cudaStream_t>(stream.handle)),
               "copy");
    return;
  }
  if (contiguous && convert_contiguous(dst, dst_type, src, src_type, n, stream)) return;
  for_each_part(strided, [&](const StridedIndex<2>& at) {
    launch(convert_any, grid_stride_blocks(at.count, kThreads), kThreads, 0, stream, dst, dst_type,
           src, src_type, at);
  });
}

void fill(void* dst, DType dtype, int64_t n, double value, Stream stream) {
  const int64_t bytes = n * static_cast<int64_t>(size_of(dtype));
  launch(fill_bytes, grid_stride_blocks(bytes, kThreads * 16), kThreads, 0, stream,
         static_cast<uint8_t*>(dst), bytes, fill_pattern(dtype, value));
}

template <class D, class S>
void accumulate(D* dst, const S* src, int64_t n, bool add, Stream stream) {
  launch_accumulate<D, S>(dst, src, n, add, stream);
}

template decltype(accumulate<float, float>) accumulate<float, float>;
template decltype(accumulate<float, bfloat16>) accumulate<float, bfloat16>;
template decltype(accumulate<bfloat16, bfloat16>) accumulate<bfloat16, bfloat16>;
template decltype(accumulate<float16, float16>) accumulate<float16, float16>;

}  // namespace quern::kernels::cuda
