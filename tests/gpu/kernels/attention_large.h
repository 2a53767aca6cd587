// An attention so large that blocks of a head run side by side and wait for each other, and too
// large for the reference. Its q, k, v and gradients are packed.
#pragma once

#include "attention_fixture.h"

namespace quern::test {

template <class T>
struct LargeAttention {
  AttentionKernels<T> kernels;
  AttentionCase c;
  AttentionShape s;
  int64_t n, nk;
  DeviceBuffer<T> q, k, v, d_o, o, dq, dk, dv;
  DeviceBuffer<float> lse;

  LargeAttention(AttentionKernels<T> kernels_in, int64_t H, int64_t Hk, int64_t length, int64_t D,
                 bool causal)
      : kernels(std::move(kernels_in)),
        c{1, length, length, H, Hk, D, causal},
        s(shape(c)),
        n(length * H * D),
        nk(length * Hk * D),
        q(random_values<T>(n, 1)),
        k(random_values<T>(nk, 2)),
        v(random_values<T>(nk, 3)),
        d_o(random_values<T>(n, 4)),
        o(n),
        dq(n),
        dk(nk),
        dv(nk),
        lse(H * length) {
    kernels.forward(c, o.get(), lse.get(), q.get(), k.get(), v.get(), s);
  }

  static AttentionShape shape(const AttentionCase& c) {
    AttentionShape s;
    s.B = c.B;
    s.Tq = c.Tq;
    s.Tk = c.Tk;
    s.H = c.H;
    s.Hk = c.Hk;
    s.D = c.D;
    s.causal = c.causal;
    s.scale = 1.0 / std::sqrt(static_cast<double>(c.D));
    const auto pack = [&](int64_t(&strides)[3], int64_t length, int64_t heads) {
      strides[0] = length * heads * c.D;
      strides[1] = heads * c.D;
      strides[2] = c.D;
    };
    for (auto* x : {&s.q_strides, &s.o_strides, &s.dq_strides, &s.do_strides}) {
      pack(*x, c.Tq, c.H);
    }
    for (auto* x : {&s.k_strides, &s.v_strides, &s.dk_strides, &s.dv_strides}) {
      pack(*x, c.Tk, c.Hk);
    }
    return s;
  }

  // dq, dk and dv, one after the other.
  std::vector<T> backward() {
    for (auto* x : {&dq, &dk, &dv}) x->poison();
    const int64_t bytes = ::quern::kernels::cuda::attention_backward_scratch(s, dtype_of<T>, {});
    DeviceBuffer<float> scratch(bytes / static_cast<int64_t>(sizeof(float)));
    kernels.backward(c, dq.get(), dk.get(), dv.get(), d_o.get(), o.get(), lse.get(), q.get(),
                     k.get(), v.get(), s, scratch.get());
    scratch.expect_guards_intact();
    std::vector<T> all;
    for (auto* x : {&dq, &dk, &dv}) {
      x->expect_guards_intact();
      const auto values = x->download();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

}  // namespace quern::test
