// Flash attention against scores in double, materialised by plain loops.
#include "kernels/attention.h"

#include "base/error.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

struct Shape {
  int64_t B, Tq, Tk, H, Hk, D;
  bool causal;
};

void set_strides(int64_t (&strides)[3], int64_t T, int64_t row, int64_t head) {
  strides[0] = T * row, strides[1] = row, strides[2] = head;
}

// q, k and v as parts of a q-k-v product: rows wider than their own heads. Gradients likewise.
AttentionShape layout_of(const Shape& x) {
  AttentionShape s;
  s.B = x.B, s.Tq = x.Tq, s.Tk = x.Tk, s.H = x.H, s.Hk = x.Hk, s.D = x.D;
  s.causal = x.causal;
  s.scale = 1 / std::sqrt(static_cast<double>(x.D));
  set_strides(s.q_strides, x.Tq, x.H * x.D + 8, x.D);
  set_strides(s.k_strides, x.Tk, x.Hk * x.D + 16, x.D);
  set_strides(s.v_strides, x.Tk, x.Hk * x.D, x.D);
  set_strides(s.o_strides, x.Tq, x.H * x.D, x.D);
  set_strides(s.do_strides, x.Tq, x.H * x.D + 24, x.D);
  std::copy_n(s.q_strides, 3, s.dq_strides);
  std::copy_n(s.k_strides, 3, s.dk_strides);
  std::copy_n(s.v_strides, 3, s.dv_strides);
  return s;
}

int64_t size_of(int64_t B, const int64_t (&strides)[3]) {
  return B * strides[0];
}

// One (batch, query head) in double: o, logsumexp, and its contribution to each gradient.
struct Tensors {
  std::vector<double> q, k, v, d_o, o, lse, dq, dk, dv;
};

void reference_head(Tensors& x, const AttentionShape& s, int64_t b, int64_t h) {
  const int64_t hk = h / (s.H / s.Hk);
  const auto at = [b](const int64_t(&st)[3], int64_t t, int64_t head, int64_t d) {
    return b * st[0] + t * st[1] + head * st[2] + d;
  };
  for (int64_t i = 0; i < s.Tq; ++i) {
    const int64_t keys = s.causal ? std::clamp<int64_t>(i + s.Tk - s.Tq + 1, 0, s.Tk) : s.Tk;
    std::vector<double> p(keys), dp(keys);
    double sum = 0.0, delta = 0.0;
    for (int64_t j = 0; j < keys; ++j) {
      double dot = 0.0;
      for (int64_t d = 0; d < s.D; ++d) {
        dot += x.q[at(s.q_strides, i, h, d)] * x.k[at(s.k_strides, j, hk, d)];
      }
      p[j] = std::exp(s.scale * dot);
      sum += p[j];
    }
    x.lse[(b * s.H + h) * s.Tq + i] = std::log(sum);
    for (int64_t j = 0; j < keys; ++j) {
      p[j] /= sum;
      for (int64_t d = 0; d < s.D; ++d) {
        const double grad = x.d_o[at(s.do_strides, i, h, d)];
        x.o[at(s.o_strides, i, h, d)] += p[j] * x.v[at(s.v_strides, j, hk, d)];
        dp[j] += grad * x.v[at(s.v_strides, j, hk, d)];
        x.dv[at(s.dv_strides, j, hk, d)] += p[j] * grad;
      }
      delta += p[j] * dp[j];
    }
    for (int64_t j = 0; j < keys; ++j) {
      const double ds = s.scale * p[j] * (dp[j] - delta);
      for (int64_t d = 0; d < s.D; ++d) {
        x.dq[at(s.dq_strides, i, h, d)] += ds * x.k[at(s.k_strides, j, hk, d)];
        x.dk[at(s.dk_strides, j, hk, d)] += ds * x.q[at(s.q_strides, i, h, d)];
      }
    }
  }
}

// The kernel's gradient buffers start at 0 so that the gaps between heads compare equal.
template <class T>
void check(const Shape& shape) {
  using A = acc_t<T>;
  const AttentionShape s = layout_of(shape);
  const int64_t nq = size_of(s.B, s.q_strides), nk = size_of(s.B, s.k_strides);
  const int64_t nv = size_of(s.B, s.v_strides), no = size_of(s.B, s.o_strides);
  const auto q = random_vector<T>(nq, 1), k = random_vector<T>(nk, 2), v = random_vector<T>(nv, 3);
  const auto d_o = random_vector<T>(size_of(s.B, s.do_strides), 4);
  Guarded<T> o(no), dq(std::vector<T>(nq, T(A(0)))), dk(std::vector<T>(nk, T(A(0)))), dv(nv);
  Guarded<A> lse(s.B * s.H * s.Tq);
  cpu::attention_forward(o.data(), lse.data(), q.data(), k.data(), v.data(), s, cpu::Stream{});
  Guarded<char> scratch(cpu::attention_backward_scratch(s, dtype_of<T>, cpu::Stream{}));
  cpu::attention_backward(dq.data(), dk.data(), dv.data(), d_o.data(), o.data(), lse.data(),
                          q.data(), k.data(), v.data(), s, {}, scratch.data(), cpu::Stream{});
  scratch.values();

  const auto zeros = [](int64_t n) { return std::vector<double>(n, 0.0); };
  Tensors want{doubles(q), doubles(k), doubles(v), doubles(d_o), zeros(no), zeros(s.B * s.H * s.Tq),
               zeros(nq),  zeros(nk),  zeros(nv)};
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) reference_head(want, s, b, h);
  }
  std::vector<double> kept, expected;  // a query without keys has logsumexp -inf on both sides
  const auto logsumexp = lse.values();
  for (size_t i = 0; i < logsumexp.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(logsumexp[i], A(-INFINITY));
    } else {
      kept.push_back(logsumexp[i]);
      expected.push_back(want.lse[i]);
    }
  }
  // Scores are sums of D products and reach 10 in size, and exp turns their absolute error into a
  // relative one; P's error then passes two more products. In bfloat16 o is also rounded before
  // delta = rowsum(dO O) is taken from it.
  const double bound = (sizeof(T) == 2 ? 4 : 16) * tolerance<T>();
  EXPECT_LE(relative_error(kept, expected), 4 * tolerance<A>());
  expect_near(o.values(), want.o, bound);
  expect_near(dq.values(), want.dq, bound);
  expect_near(dk.values(), want.dk, bound);
  expect_near(dv.values(), want.dv, bound);
}

TEST(Attention, EveryHeadDim) {
  for (const int64_t D : {8, 16, 32, 64, 80, 128, 256}) {
    check<float>({2, 70, 70, 2, 2, D, true});
    check<double>({1, 70, 70, 2, 1, D, true});
    check<bfloat16>({1, 70, 70, 2, 1, D, true});
  }
}

TEST(Attention, EveryMaskAndLength) {
  for_float_types([](auto t) {
    for (const bool causal : {true, false}) {
      for (const auto& [Tq, Tk] : {std::pair<int64_t, int64_t>{1, 1},
                                   {64, 64},
                                   {129, 129},
                                   {1, 100},
                                   {31, 130},
                                   {130, 31},
                                   {65, 64},
                                   {0, 5},
                                   {5, 0}}) {
        check<decltype(t)>({2, Tq, Tk, 6, 2, 16, causal});
      }
    }
  });
}

TEST(Attention, GroupedQueryHeads) {
  for (const int64_t Hk : {1, 2, 3, 6}) check<float>({1, 67, 67, 6, Hk, 24, true});
}

// 40 queries over 8 keys: the first 32 see none, so O and dQ are 0 and logsumexp is -inf.
TEST(Attention, QueriesWithoutKeys) {
  check<float>({1, 40, 8, 1, 1, 8, true});
  check<float>({1, 200, 8, 1, 1, 8, true});  // whole query tiles without keys
}

TEST(Attention, ThreadCount) {
  const AttentionShape s = layout_of({2, 100, 100, 4, 2, 32, true});
  const auto q = random_vector<float>(size_of(2, s.q_strides), 1);
  const auto k = random_vector<float>(size_of(2, s.k_strides), 2);
  const auto v = random_vector<float>(size_of(2, s.v_strides), 3);
  const auto d_o = random_vector<float>(size_of(2, s.do_strides), 4);
  std::vector<char> scratch(cpu::attention_backward_scratch(s, DType::f32, cpu::Stream{}));
  expect_thread_count_does_not_matter([&] {
    std::vector<float> o(size_of(2, s.o_strides)), lse(2 * 4 * 100), dv(v.size());
    std::vector<float> gradients(q.size() + k.size());
    cpu::attention_forward(o.data(), lse.data(), q.data(), k.data(), v.data(), s, cpu::Stream{});
    cpu::attention_backward(gradients.data(), gradients.data() + q.size(), dv.data(), d_o.data(),
                            o.data(), lse.data(), q.data(), k.data(), v.data(), s, {},
                            scratch.data(), cpu::Stream{});
    gradients.insert(gradients.end(), o.begin(), o.end());
    gradients.insert(gradients.end(), dv.begin(), dv.end());
    return gradients;
  });
}

void expect_refused(const Shape& shape, const char* message) {
  try {
    check_attention(layout_of(shape));
    FAIL() << "no exception for: " << message;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), message);
  }
}

TEST(Attention, RefusesWhatFlashCannotTake) {
  expect_refused({1, 4, 4, 2, 2, 12, true},
                 "attention: head_dim is 12, flash takes a multiple of 8 up to 256; choose "
                 "attention = naive");
  expect_refused({1, 4, 4, 2, 2, 264, true},
                 "attention: head_dim is 264, flash takes a multiple of 8 up to 256; choose "
                 "attention = naive");
  expect_refused({1, 4, 4, 6, 4, 16, true},
                 "attention: k has 4 heads, expected a divisor of q's 6");
}

}  // namespace
}  // namespace quern::kernels
