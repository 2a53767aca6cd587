// c = f(a, b) with broadcasting, and the gradients with respect to each before they are summed over
// broadcast dimensions. Rows where both operands are contiguous or repeated run in vector lanes.
#include "kernels/binary.h"

#include "kernels/common/parallel.h"
#include "kernels/cpu/strided.h"

namespace quern::kernels::cpu {
namespace {

// Calls body(i, a's index, b's index) along a span. The strides 1 and 0 are spelled out for the
// compiler to vectorise.
template <class Body>
void for_span(int64_t count, int64_t a_stride, int64_t b_stride, const Body& body) {
  if (a_stride == 1 && b_stride == 1) {
    vector_for(0, count, [&](int64_t i) { body(i, i, i); });
  } else if (a_stride == 1 && b_stride == 0) {
    vector_for(0, count, [&](int64_t i) { body(i, i, 0); });
  } else if (a_stride == 0 && b_stride == 1) {
    vector_for(0, count, [&](int64_t i) { body(i, 0, i); });
  } else {
    for (int64_t i = 0; i < count; ++i) body(i, i * a_stride, i * b_stride);
  }
}

// One functor's gradients.
template <class F, class T>
void backward_of(F f, T* da, T* db, const T* a, const T* b, const T* dc,
                 const BinaryLayout& layout) {
  using A = acc_t<T>;
  const StridedWalk<3> walk(layout.ndim, layout.shape,
                            {layout.a_strides, layout.b_strides, layout.dc_strides});
  const int64_t a_stride = walk.col_stride(0), b_stride = walk.col_stride(1);
  const int64_t dc_stride = walk.col_stride(2);
  walk.parallel_spans([&](int64_t position, const auto& at, int64_t count) {
    // Calls body(i, a's index, b's index, dc's index) along the span.
    const auto each = [&](const auto& body) {
      if (dc_stride == 1) {
        for_span(count, a_stride, b_stride,
                 [=](int64_t i, int64_t ia, int64_t ib) { body(i, ia, ib, i); });
      } else {
        for (int64_t i = 0; i < count; ++i) body(i, i * a_stride, i * b_stride, i * dc_stride);
      }
    };
    const int64_t a_first = at[0], b_first = at[1];
    const T* grad = dc + at[2];
    if (da != nullptr) {
      each([=](int64_t i, int64_t, int64_t ib, int64_t ig) {
        A r = 0;
        if constexpr (F::kReadsB) r = static_cast<A>(b[b_first + ib]);
        da[position + i] = static_cast<T>(f.template da<A>(r, static_cast<A>(grad[ig])));
      });
    }
    if (db != nullptr) {
      each([=](int64_t i, int64_t ia, int64_t ib, int64_t ig) {
        A l = 0, r = 0;
        if constexpr (F::kReadsA) l = static_cast<A>(a[a_first + ia]);
        if constexpr (F::kReadsB) r = static_cast<A>(b[b_first + ib]);
        db[position + i] = static_cast<T>(f.template db<A>(l, r, static_cast<A>(grad[ig])));
      });
    }
  });
}

}  // namespace

template <class T>
void binary_forward(T* c, const T* a, const T* b, const BinaryLayout& layout, const BinaryOp& op,
                    Stream) {
  using A = acc_t<T>;
  std::visit(
      [=](auto f) {
        const StridedWalk<2> walk(layout.ndim, layout.shape, {layout.a_strides, layout.b_strides});
        walk.parallel_spans([&](int64_t position, const auto& at, int64_t count) {
          T* out = c + position;
          const T *left = a + at[0], *right = b + at[1];
          for_span(count, walk.col_stride(0), walk.col_stride(1),
                   [=](int64_t i, int64_t ia, int64_t ib) {
                     out[i] = static_cast<T>(f.template forward<A>(static_cast<A>(left[ia]),
                                                                   static_cast<A>(right[ib])));
                   });
        });
      },
      op);
}

template <class T>
void binary_backward(T* da, T* db, const T* a, const T* b, const T* dc, const BinaryLayout& layout,
                     const BinaryOp& op, Stream) {
  std::visit([&](auto f) { backward_of(f, da, db, a, b, dc, layout); }, op);
}

#define QUERN_INSTANTIATE(T)                              \
  template decltype(binary_forward<T>) binary_forward<T>; \
  template decltype(binary_backward<T>) binary_backward<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
