// Rotary position embedding on halves: the pair (x[i], x[i + D/2]) turns by the angle of its
// position and of i.
#include "kernels/rope.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream) {
  using A = acc_t<T>;
  const int64_t half = layout.D / 2;
  const A direction = inverse ? A(-1) : A(1);
  const int64_t given =
      positions == nullptr ? 0 : layout.T * (layout.positions_per_batch ? layout.B : 1);
  for (int64_t i = 0; i < given; ++i) {
    QUERN_CHECK(positions[i] >= 0 && positions[i] < layout.table_rows, "rope: position ", i, " is ",
                positions[i], ", expected 0 to ", layout.table_rows - 1);
  }
  parallel_rows(layout.B * layout.T, layout.H * layout.D, [=](int64_t row) {
    const int64_t b = row / layout.T, t = row % layout.T;
    int64_t position = layout.first_position + t;
    if (positions != nullptr) position = positions[layout.positions_per_batch ? row : t];
    const A *c = cos + position * half, *s = sin + position * half;
    for (int64_t h = 0; h < layout.H; ++h) {
      const int64_t from = b * layout.x_strides[0] + t * layout.x_strides[1];
      const int64_t to = b * layout.y_strides[0] + t * layout.y_strides[1];
      const T *x1 = x + from + h * layout.x_strides[2], *x2 = x1 + half;
      T *y1 = y + to + h * layout.y_strides[2], *y2 = y1 + half;
      vector_for(0, half, [=](int64_t i) {
        const A first = static_cast<A>(x1[i]), second = static_cast<A>(x2[i]);
        const A turn = direction * s[i];
        y1[i] = static_cast<T>(first * c[i] - second * turn);
        y2[i] = static_cast<T>(second * c[i] + first * turn);
      });
    }
  });
}

template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta,
                const RopeScaling& scaling, Stream) {
  const int64_t half = D / 2;
  parallel_rows(positions, 16 * D, [=](int64_t p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * rope_frequency(i, D, theta, scaling);
      cos[p * half + i] = static_cast<A>(std::cos(angle));
      sin[p * half + i] = static_cast<A>(std::sin(angle));
    }
  });
}

template decltype(rope<float>) rope<float>;
template decltype(rope<bfloat16>) rope<bfloat16>;
template decltype(rope<double>) rope<double>;

template decltype(rope_table<float>) rope_table<float>;
template decltype(rope_table<double>) rope_table<double>;

}  // namespace quern::kernels::cpu
