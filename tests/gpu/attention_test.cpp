// Flash attention on the GPU against scores written out in double: every head_dim's tile, masks,
// grouped heads, lengths that differ, and q, k and v as parts of one buffer.
#include "kernels/attention.h"

#include "attention_reference.h"
#include "kernels/cuda/attention_tiles.h"

namespace quern::test {
namespace {

using kernels::AttentionShape;
using kernels::cuda::Stream;

struct Case {
  int64_t B, Tq, Tk, H, Hk, D;
  bool causal;
  int64_t shift = 0;         // elements of misalignment
  int64_t padding = 0;       // elements after each token
  int64_t shared_kib = 227;  // the tiles' limit: an H200's, or a laptop's 99
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B " << c.B << " Tq " << c.Tq << " Tk " << c.Tk << " H " << c.H << " Hk " << c.Hk
             << " D " << c.D << (c.causal ? " causal" : "") << " shift " << c.shift << " padding "
             << c.padding << " shared " << c.shared_kib << " KiB";
}

// Where one (B, T, heads, D) tensor lies in a buffer of rows (tokens) that others share.
struct Place {
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

// q, k and v lie side by side in each token when there are as many queries as keys; otherwise k and
// v do, and q is alone.
struct Layout {
  Place q, k, v, o;

  explicit Layout(const Case& c) {
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

AttentionShape shape_of(const Case& c, const Layout& layout) {
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

template <class T>
struct Fixture {
  Case c;
  Layout layout;
  AttentionShape s;
  AttentionArrays exact, naive;
  DeviceBuffer<T> q, kv, o, d_o, dq, dkv;  // kv is unused when q holds k and v as well
  DeviceBuffer<float> lse;

  explicit Fixture(const Case& which)
      : c(which),
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

    const T nan(NAN);  // what lies between the tensors must not be read
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
    kernels::cuda::attention_forward_within(c.shared_kib << 10, o.get(), lse.get(), q.get(),
                                            key_buffer().get() + layout.k.offset,
                                            key_buffer().get() + layout.v.offset, s, Stream{});
  }
  void backward() {
    DeviceBuffer<uint8_t> scratch(
        kernels::cuda::attention_backward_scratch(s, dtype_of<T>, Stream{}));
    kernels::cuda::attention_backward_within(
        c.shared_kib << 10, dq.get(), key_gradients().get() + layout.k.offset,
        key_gradients().get() + layout.v.offset, d_o.get(), o.get(), lse.get(), q.get(),
        key_buffer().get() + layout.k.offset, key_buffer().get() + layout.v.offset, s,
        scratch.get(), Stream{});
    scratch.expect_guards_intact();
  }
};

// Errors are norms. Float: a relative 1e-5, for sums over up to 256 features and some hundred keys
// in another order, and 5e-6 an element where terms of size 1 cancel. Storage in 16 bits: twice
// what the naive op in that precision loses.
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
void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Fixture<T> f(c);
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

void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    check<float>(c);
    check<bfloat16>(c);
  }
}

class AttentionGpu : public GpuTest {};

TEST_F(AttentionGpu, HeadDims) {
  std::vector<Case> cases;
  for (const int64_t D : {8, 16, 24, 32, 40, 64, 80, 96, 104, 128}) {
    cases.push_back({2, 130, 130, 2, 2, D, true});
    cases.push_back({1, 67, 67, 4, 2, D, false});
  }
  check_all(cases);
}

TEST_F(AttentionGpu, WideHeadsOnLargeAndPortableTiles) {
  std::vector<Case> cases;
  for (const int64_t D : {136, 192, 256}) {
    for (const int64_t shared_kib : {99, 227}) {
      cases.push_back({1, 70, 70, 2, 1, D, true, 0, 0, shared_kib});
      cases.push_back({1, 33, 65, 2, 2, D, false, 0, 0, shared_kib});
    }
  }
  check_all(cases);
}

TEST_F(AttentionGpu, Lengths) {
  std::vector<Case> cases;
  for (const bool causal : {false, true}) {
    for (const int64_t T : {1, 31, 33, 64, 65, 257}) cases.push_back({2, T, T, 2, 1, 64, causal});
    cases.push_back({2, 1, 77, 6, 2, 64, causal});
    cases.push_back({1, 100, 37, 4, 4, 32, causal});  // causal: the first 63 queries see no key
    cases.push_back({1, 37, 200, 4, 1, 64, causal});
    cases.push_back({3, 200, 1, 2, 2, 64, causal});
    cases.push_back({1, 1025, 1025, 1, 1, 16, causal});
  }
  check_all(cases);
}

TEST_F(AttentionGpu, UnalignedRowsTakeTheScalarPath) {
  check_all({{2, 65, 65, 3, 1, 64, true, 1, 0},
             {2, 65, 65, 3, 1, 64, true, 0, 3},
             {1, 40, 90, 2, 2, 80, true, 3, 5}});
}

TEST_F(AttentionGpu, QueriesWithoutKeys) {
  for (const Case& c : {Case{1, 100, 37, 2, 1, 32, true}, Case{1, 5, 0, 2, 1, 32, false}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Fixture<float> f(c);
    f.forward();
    f.backward();
    const auto o = f.layout.o.take(f.o.download());
    const auto dq = f.layout.q.take(f.dq.download());
    const auto lse = f.lse.download();
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < std::min(c.Tq, c.Tq - c.Tk); ++i) {
        EXPECT_EQ(lse[h * c.Tq + i], -INFINITY);
        for (int64_t d = 0; d < c.D; ++d) {
          ASSERT_EQ(o[(i * c.H + h) * c.D + d], 0.0);
          ASSERT_EQ(dq[(i * c.H + h) * c.D + d], 0.0);
        }
      }
    }
  }
}

TEST_F(AttentionGpu, EmptyAndKeysWithoutQueries) {
  check<float>({0, 5, 5, 2, 1, 32, true});
  Fixture<float> f({1, 0, 7, 2, 1, 32, true});
  f.forward();
  f.backward();
  for (const double g : f.layout.k.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
  for (const double g : f.layout.v.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
}

// What an op calls: the device's own limit picks the tile.
TEST_F(AttentionGpu, DevicesOwnTiles) {
  Fixture<float> f({1, 70, 70, 2, 1, 256, true});
  kernels::cuda::attention_forward(f.o.get(), f.lse.get(), f.q.get(), f.q.get() + f.layout.k.offset,
                                   f.q.get() + f.layout.v.offset, f.s, Stream{});
  const auto o = f.layout.o.take(f.o.download());
  expect_accurate<float>("o", o, f.exact.o, f.naive.o);
}

TEST_F(AttentionGpu, RefusesOtherShapes) {
  Fixture<float> f({1, 4, 4, 2, 1, 32, true});
  f.s.D = 12;
  EXPECT_THROW(f.forward(), Error);
  f.s.D = 264;
  EXPECT_THROW(f.forward(), Error);
}

}  // namespace
}  // namespace quern::test
