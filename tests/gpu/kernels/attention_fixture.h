// The frame of the flash attention tests on the GPU: a case's arrays in strided, guarded buffers
// with NaN between them, the exact and the naive result, and the check of one set of kernels.
#pragma once

#include <functional>
#include <ostream>

#include "attention_reference.h"
#include "kernels/attention.h"

namespace quern::test {

using kernels::AttentionShape;
using kernels::cuda::Stream;

struct AttentionCase {
  int64_t B, Tq, Tk, H, Hk, D;
  bool causal;
  int64_t shift = 0;         // elements of misalignment
  int64_t padding = 0;       // elements after each token
  int64_t shared_kib = 227;  // the tiles' limit: an H200's, or a laptop's 99
};

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  return out << "B " << c.B << " Tq " << c.Tq << " Tk " << c.Tk << " H " << c.H << " Hk " << c.Hk
             << " D " << c.D << (c.causal ? " causal" : "") << " shift " << c.shift << " padding "
             << c.padding << " shared " << c.shared_kib << " KiB";
}

// The place of one (B, T, heads, D) tensor in a buffer of rows (tokens) that others share.
struct AttentionPlace {
  int64_t B, T, heads, D, row, offset;

  void set_strides(int64_t (&strides)[3]) const {
    strides[0] = T * row;
    strides[1] = row;
    strides[2] = D;
  }
  int64_t buffer_size() const { return B * T * row; }
  template <class T1, class T2, class Move>
  void for_each(std::vector<T1>& buffer, std::vector<T2>& packed, Move move) const {
    packed.resize(static_cast<size_t>(B * T * heads * D));
    for (int64_t token = 0; token < B * T; ++token) {
      for (int64_t i = 0; i < heads * D; ++i) {
        move(buffer[token * row + offset + i], packed[token * heads * D + i]);
      }
    }
  }
  template <class T1>
  void put(std::vector<T1>& buffer, std::vector<double> packed) const {
    for_each(buffer, packed, [](T1& x, double y) { x = T1(static_cast<float>(y)); });
  }
  template <class T1>
  std::vector<double> take(std::vector<T1> buffer) const {
    std::vector<double> packed;
    for_each(buffer, packed, [](T1 x, double& y) { y = widen(x); });
    return packed;
  }
};

// q, k and v lie side by side in each token if there are as many queries as keys; otherwise q is
// alone, and k and v share a buffer.
struct AttentionLayout {
  AttentionPlace q, k, v, o;

  explicit AttentionLayout(const AttentionCase& c) {
    const bool together = c.Tq == c.Tk;
    const int64_t q_row = (together ? c.H + 2 * c.Hk : c.H) * c.D + c.padding;
    const int64_t kv_row = together ? q_row : 2 * c.Hk * c.D + c.padding;
    const int64_t k_offset = together ? c.H * c.D : 0;
    q = {c.B, c.Tq, c.H, c.D, q_row, 0};
    k = {c.B, c.Tk, c.Hk, c.D, kv_row, k_offset};
    v = {c.B, c.Tk, c.Hk, c.D, kv_row, k_offset + c.Hk * c.D};
    o = {c.B, c.Tq, c.H, c.D, c.H * c.D + c.padding, 0};
  }
};

inline AttentionShape shape_of(const AttentionCase& c, const AttentionLayout& layout) {
  AttentionShape s;
  s.B = c.B;
  s.Tq = c.Tq;
  s.Tk = c.Tk;
  s.H = c.H;
  s.Hk = c.Hk;
  s.D = c.D;
  s.causal = c.causal;
  s.scale = 1.0 / std::sqrt(static_cast<double>(c.D));
  for (auto* strides : {&s.q_strides, &s.dq_strides}) layout.q.set_strides(*strides);
  for (auto* strides : {&s.k_strides, &s.dk_strides}) layout.k.set_strides(*strides);
  for (auto* strides : {&s.v_strides, &s.dv_strides}) layout.v.set_strides(*strides);
  for (auto* strides : {&s.o_strides, &s.do_strides}) layout.o.set_strides(*strides);
  return s;
}

// The kernels under test; their arguments are those of kernels/attention.h, scratch as floats.
template <class T>
struct AttentionKernels {
  using Forward = void(const AttentionCase&, T* o, float* lse, const T* q, const T* k, const T* v,
                       const AttentionShape&);
  using Backward = void(const AttentionCase&, T* dq, T* dk, T* dv, const T* d_o, const T* o,
                        const float* lse, const T* q, const T* k, const T* v, const AttentionShape&,
                        float* scratch);
  std::function<Forward> forward;
  std::function<Backward> backward;
  // Bytes of scratch; by default what an op gets, which is enough for each kernel.
  std::function<int64_t(const AttentionShape&)> scratch = [](const AttentionShape& s) {
    return ::quern::kernels::cuda::attention_backward_scratch(s, dtype_of<T>, {});
  };
};

template <class T>
struct AttentionFixture {
  AttentionKernels<T> kernels;
  AttentionCase c;
  AttentionLayout layout;
  AttentionShape s;
  AttentionArrays exact, naive;
  DeviceBuffer<T> q, kv, o, d_o, dq, dkv;  // kv is unused when q holds k and v as well
  DeviceBuffer<float> lse;

  AttentionFixture(AttentionKernels<T> kernels_in, const AttentionCase& which)
      : kernels(std::move(kernels_in)),
        c(which),
        layout(which),
        s(shape_of(which, layout)),
        q(layout.q.buffer_size(), c.shift),
        kv(layout.k.buffer_size(), c.shift),
        o(layout.o.buffer_size(), c.shift),
        d_o(layout.o.buffer_size(), c.shift),
        dq(layout.q.buffer_size(), c.shift),
        dkv(layout.k.buffer_size(), c.shift),
        lse(c.B * c.H * c.Tq) {
    exact.q = widen(random_values<T>(c.B * c.Tq * c.H * c.D, 1));
    exact.k = widen(random_values<T>(c.B * c.Tk * c.Hk * c.D, 2));
    exact.v = widen(random_values<T>(c.B * c.Tk * c.Hk * c.D, 3));
    exact.d_o = widen(random_values<T>(c.B * c.Tq * c.H * c.D, 4));
    naive = exact;
    naive_attention(exact, s, [](double x) { return x; });
    naive_attention(naive, s, [](double x) { return widen(T(static_cast<float>(x))); });

    const T nan(NAN);  // the gaps between the tensors must not be read
    std::vector<T> image(static_cast<size_t>(layout.q.buffer_size()), nan);
    layout.q.put(image, exact.q);
    if (together()) {
      layout.k.put(image, exact.k);
      layout.v.put(image, exact.v);
    }
    q.upload(image);
    image.assign(static_cast<size_t>(layout.k.buffer_size()), nan);
    layout.k.put(image, exact.k);
    layout.v.put(image, exact.v);
    kv.upload(image);
    image.assign(static_cast<size_t>(layout.o.buffer_size()), nan);
    layout.o.put(image, exact.d_o);
    d_o.upload(image);
  }

  bool together() const { return c.Tq == c.Tk; }
  DeviceBuffer<T>& key_buffer() { return together() ? q : kv; }
  DeviceBuffer<T>& key_gradients() { return together() ? dq : dkv; }

  void forward() {
    kernels.forward(c, o.get(), lse.get(), q.get(), key_buffer().get() + layout.k.offset,
                    key_buffer().get() + layout.v.offset, s);
  }
  void backward() {
    DeviceBuffer<float> scratch(kernels.scratch(s) / static_cast<int64_t>(sizeof(float)));
    kernels.backward(c, dq.get(), key_gradients().get() + layout.k.offset,
                     key_gradients().get() + layout.v.offset, d_o.get(), o.get(), lse.get(),
                     q.get(), key_buffer().get() + layout.k.offset,
                     key_buffer().get() + layout.v.offset, s, scratch.get());
    scratch.expect_guards_intact();
  }
};

// Errors are norms. Float: relative 1e-5, for sums over up to 256 features and some hundred keys in
// another order, and 5e-6 an element where terms of size 1 cancel. Storage in 16 bits: twice the
// error of the naive op in that precision.
template <class T>
void expect_accurate(const char* name, const std::vector<double>& actual,
                     const std::vector<double>& exact, const std::vector<double>& naive) {
  ASSERT_EQ(actual.size(), exact.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << name << ", element " << i << ": " << actual[i];
  }
  const std::vector<double> zero(exact.size(), 0.0);
  const double in_float =
      1e-5 * distance(exact, zero) + 5e-6 * std::sqrt(static_cast<double>(exact.size()));
  const double allowed = sizeof(T) == 4 ? in_float : 2.0 * distance(naive, exact) + in_float;
  EXPECT_LE(distance(actual, exact), allowed) << name;
}

template <class T>
void check_attention_case(const AttentionKernels<T>& kernels, const AttentionCase& c) {
  SCOPED_TRACE(::testing::Message() << c);
  AttentionFixture<T> f(kernels, c);
  const auto o = run_twice(f.o, [&] { f.forward(); });
  f.lse.expect_guards_intact();
  expect_accurate<T>("o", f.layout.o.take(o), f.exact.o, f.naive.o);
  // Scores of up to about 20, each off by a few 1e-6.
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 1e-5);

  const auto dq = run_twice(f.dq, [&] { f.backward(); });
  const auto dkv = run_twice(f.key_gradients(), [&] { f.backward(); });
  expect_accurate<T>("dq", f.layout.q.take(dq), f.exact.dq, f.naive.dq);
  expect_accurate<T>("dk", f.layout.k.take(dkv), f.exact.dk, f.naive.dk);
  expect_accurate<T>("dv", f.layout.v.take(dkv), f.exact.dv, f.naive.dv);
}

}  // namespace quern::test
