// The inverse RoPE of attention's gradients, for backward kernels that do not rotate them
// themselves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/rope.h"

namespace quern::kernels {

// Rotates dq and dk in place, in one call if adjacent in each token. The stream picks the backend.
template <class T, class Stream>
void rotate_gradients_back(T* dq, T* dk, const AttentionShape& s,
                           const RotaryTable<acc_t<T>>& rotary, Stream stream) {
  if (rotary.cos == nullptr) return;
  const auto rotate = [&](T* x, int64_t tokens, int64_t heads, const int64_t(&strides)[3]) {
    RopeLayout layout{.B = s.B, .T = tokens, .H = heads, .D = s.D};
    std::copy_n(strides, 3, layout.x_strides);
    std::copy_n(strides, 3, layout.y_strides);
    rope(x, x, rotary.cos, rotary.sin, nullptr, layout, true, stream);
  };
  const bool side_by_side = s.Tq == s.Tk && dk == dq + s.H * s.dq_strides[2] &&
                            std::equal(s.dq_strides, s.dq_strides + 3, s.dk_strides);
  if (side_by_side) return rotate(dq, s.Tq, s.H + s.Hk, s.dq_strides);
  rotate(dq, s.Tq, s.H, s.dq_strides);
  rotate(dk, s.Tk, s.Hk, s.dk_strides);
}

}  // namespace quern::kernels
