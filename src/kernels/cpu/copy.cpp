// Fills, strided copies and conversions. Copies of one dtype move bytes, whole rows at a time where
// both sides are contiguous along the innermost dimension (as in transposes of heads).
#include "kernels/copy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/round_to_odd.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/strided.h"

namespace quern::kernels::cpu {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

// Converts between any two dtypes. Floats round to nearest even, float to integer truncates,
// anything to bool is `!= 0`.
template <class D, class S>
D convert(S value) {
  if constexpr (std::is_same_v<D, S>) {
    return value;
  } else if constexpr (kIsHalf<S>) {
    return convert<D>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<D, bool>) {
    return value != S(0);
  } else if constexpr (kIsHalf<D> && (std::is_same_v<S, double> || std::is_integral_v<S>)) {
    return D(round_to_odd(static_cast<double>(value)));
  } else if constexpr (std::is_same_v<D, int32_t> && std::is_same_v<S, int64_t>) {
    using Limits = std::numeric_limits<int32_t>;
    return static_cast<D>(std::clamp<int64_t>(value, Limits::min(), Limits::max()));
  } else {
    return static_cast<D>(value);
  }
}

// Calls f with a value of the C++ type of `dtype`.
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bfloat16{});
    case DType::f16: return f(float16{});
    case DType::f64: return f(double{});
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
    case DType::u16: return f(uint16_t{});
    case DType::u8: return f(uint8_t{});
    case DType::boolean: return f(bool{});
  }
  fail("copy: unknown dtype");
}

// Calls f with an unsigned integer as wide as the elements.
template <class F>
void with_word(DType dtype, const F& f) {
  switch (size_of(dtype)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
  }
  fail(cat("copy: no word as wide as ", dtype));
}

template <class D, class S>
void copy_strided(D* dst, const S* src, const StridedCopy& layout) {
  const StridedWalk<2> walk(layout.ndim, layout.shape, {layout.dst_strides, layout.src_strides});
  const int64_t dst_step = walk.col_stride(0), src_step = walk.col_stride(1);
  walk.parallel_spans([&](int64_t, const auto& at, int64_t count) {
    D* to = dst + at[0];
    const S* from = src + at[1];
    if (dst_step == 1 && src_step == 1) {
      if constexpr (std::is_same_v<D, S>) {
        std::memcpy(to, from, static_cast<size_t>(count) * sizeof(D));
      } else {
        vector_for(0, count, [=](int64_t i) { to[i] = convert<D>(from[i]); });
      }
    } else {
      for (int64_t i = 0; i < count; ++i) to[i * dst_step] = convert<D>(from[i * src_step]);
    }
  });
}

}  // namespace

void copy(void* dst, DType dst_type, const void* src, DType src_type, const StridedCopy& layout,
          Stream) {
  if (dst_type == src_type) {
    with_word(dst_type, [&](auto word) {
      using Word = decltype(word);
      copy_strided(static_cast<Word*>(dst), static_cast<const Word*>(src), layout);
    });
    return;
  }
  with_type(dst_type, [&](auto to) {
    with_type(src_type, [&](auto from) {
      using D = decltype(to);
      using S = decltype(from);
      if constexpr (!std::is_same_v<D, S>) {
        copy_strided(static_cast<D*>(dst), static_cast<const S*>(src), layout);
      }
    });
  });
}

void fill(void* dst, DType dtype, int64_t n, double value, Stream) {
  with_type(dtype, [&](auto element) {
    using D = decltype(element);
    D* to = static_cast<D*>(dst);
    const D converted = convert<D>(value);
    parallel_elements(n, [=](int64_t i) { to[i] = converted; });
  });
}

template <class D, class S>
void accumulate(D* dst, const S* src, int64_t n, bool add, Stream) {
  using A = acc_t<D>;
  if (add) {
    parallel_elements(n, [=](int64_t i) {
      dst[i] = static_cast<D>(static_cast<A>(dst[i]) + static_cast<A>(src[i]));
    });
  } else {
    parallel_elements(n, [=](int64_t i) { dst[i] = convert<D>(src[i]); });
  }
}

template decltype(accumulate<float, float>) accumulate<float, float>;
template decltype(accumulate<float, bfloat16>) accumulate<float, bfloat16>;
template decltype(accumulate<bfloat16, bfloat16>) accumulate<bfloat16, bfloat16>;
template decltype(accumulate<float16, float16>) accumulate<float16, float16>;
template decltype(accumulate<double, double>) accumulate<double, double>;

}  // namespace quern::kernels::cpu
