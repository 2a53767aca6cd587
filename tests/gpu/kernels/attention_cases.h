// Cases and checks that the tests of several attention kernels share.
#pragma once

#include <initializer_list>

#include "attention_fixture.h"

namespace quern::test {

// Head dimensions with tiles in Hopper's kernels, and some that are padded to each of them.
inline constexpr int64_t kHopperDims[] = {64, 80, 96, 128, 192, 256};
inline constexpr int64_t kHopperPaddedDims[] = {24,  32,  40,  48,  56,  72,  88, 104,
                                                112, 120, 136, 160, 184, 200, 248};

// Those with tiles, and some padded ones.
inline std::vector<int64_t> hopper_dims_and(std::initializer_list<int64_t> padded) {
  std::vector<int64_t> dims(std::begin(kHopperDims), std::end(kHopperDims));
  dims.insert(dims.end(), padded);
  return dims;
}

// Calls `add(cases, D, causal)` for each of those with tiles, causal and not.
template <class Add>
std::vector<AttentionCase> hopper_cases(Add add) {
  std::vector<AttentionCase> cases;
  for (const int64_t D : kHopperDims) {
    for (const bool causal : {false, true}) add(cases, D, causal);
  }
  return cases;
}

inline std::vector<AttentionCase> hopper_one_tile() {
  return hopper_cases([](auto& cases, int64_t D, bool causal) {
    cases.push_back({1, 64, 64, 1, 1, D, causal});
  });
}

// Around the sizes of tiles: 64 rows a warpgroup, 128 or 192 a block, 64 to 160 in the rings.
inline std::vector<AttentionCase> hopper_lengths() {
  return hopper_cases([](auto& cases, int64_t D, bool causal) {
    for (const int64_t T :
         {1, 2, 63, 65, 79, 95, 97, 127, 129, 145, 160, 177, 193, 200, 256, 321, 450}) {
      // A few rows alone may round worse than twice as badly as the naive op's.
      const int64_t B = T <= 2 ? 16 : 1;
      cases.push_back({B, T, T, 2, 1, D, causal});
    }
  });
}

inline std::vector<AttentionCase> hopper_queries_and_keys_differ() {
  return hopper_cases([](auto& cases, int64_t D, bool causal) {
    cases.insert(cases.end(), {{2, 1, 77, 6, 2, D, causal},
                               {1, 37, 400, 4, 1, D, causal},
                               {3, 200, 1, 2, 2, D, causal},
                               {1, 129, 511, 2, 2, D, causal},
                               {1, 511, 129, 2, 1, D, causal}});
  });
}

inline std::vector<AttentionCase> hopper_grouped_heads_and_gaps() {
  return hopper_cases([](auto& cases, int64_t D, bool causal) {
    if (causal) {
      cases.push_back({2, 200, 200, 6, 2, D, true, 0, 8});
      cases.push_back({2, 100, 230, 3, 3, D, true, 8, 8});
    } else {
      cases.push_back({2, 200, 200, 6, 1, D, false, 0, 24});
    }
  });
}

// Heads wider than `portable` and narrower than their tile, with gaps between tokens and without.
inline std::vector<AttentionCase> hopper_padded_heads(int64_t portable) {
  std::vector<AttentionCase> cases;
  for (const int64_t D : kHopperPaddedDims) {
    if (D <= portable) continue;
    cases.insert(cases.end(), {{2, 200, 200, 3, 1, D, true, 0, 8},
                               {1, 65, 65, 2, 2, D, false, 0, 16},
                               {1, 130, 321, 4, 2, D, true, 0, 8},
                               {1, 200, 70, 2, 1, D, true, 0, 8},  // queries without keys
                               {3, 70, 300, 12, 3, D, true, 0, 8},
                               {2, 100, 100, 5, 5, D, false},
                               {2, 33, 1, 4, 2, D, false},
                               {16, 1, 77, 2, 1, D, false}});
  }
  return cases;
}

// Nothing was written between the last tensor of a token and the next token.
inline void expect_gaps_poisoned(const AttentionCase& c, const AttentionPlace& last,
                                 const std::vector<bfloat16>& image) {
  const int64_t end = last.offset + last.heads * last.D;
  ASSERT_EQ(last.row - end, c.padding);
  for (int64_t token = 0; token < last.B * last.T; ++token) {
    for (int64_t i = end; i < last.row; ++i) {
      ASSERT_EQ(image[token * last.row + i].bits, 0xFFFF) << "token " << token << ", place " << i;
    }
  }
}

// Cases for the mma.sync kernels: each head dimension with the tiles of a laptop and of an H200,
// more rows than one tile of 128, and a partial last tile.
inline std::vector<AttentionCase> mma_head_dims(std::initializer_list<int64_t> dims) {
  std::vector<AttentionCase> cases;
  for (const int64_t D : dims) {
    for (const int64_t shared_kib : {99, 227}) {
      cases.push_back({2, 130, 130, 2, 2, D, true, 0, 0, shared_kib});
      cases.push_back({1, 67, 67, 4, 2, D, false, 0, 0, shared_kib});
    }
  }
  return cases;
}

inline std::vector<AttentionCase> mma_lengths(std::initializer_list<int64_t> dims) {
  std::vector<AttentionCase> cases;
  for (const int64_t D : dims) {
    for (const bool causal : {false, true}) {
      for (const int64_t T : {1, 17, 31, 33, 63, 64, 65, 128, 130, 257}) {
        cases.push_back({2, T, T, 2, 1, D, causal});
      }
      cases.push_back({2, 1, 77, 6, 2, D, causal});
      cases.push_back({1, 150, 37, 4, 4, D, causal});  // causal: the first 113 queries see no key
      cases.push_back({1, 37, 300, 4, 1, D, causal});
      cases.push_back({3, 200, 1, 2, 2, D, causal});
    }
  }
  cases.push_back({1, 1025, 1025, 1, 1, 16, true});
  cases.push_back({5, 300, 300, 32, 8, 16, true});  // more blocks than one group of the tile order
  return cases;
}

// No access of 16 bytes is aligned.
inline std::vector<AttentionCase> mma_unaligned_rows() {
  return {{2, 130, 130, 3, 1, 64, true, 1, 0},
          {2, 65, 65, 3, 1, 64, true, 0, 3},
          {1, 40, 90, 2, 2, 80, true, 3, 5},
          {1, 130, 130, 2, 1, 128, false, 2, 2}};
}

// 16-byte rows with NaN between them.
inline std::vector<AttentionCase> mma_padded_rows() {
  return {{2, 130, 130, 3, 1, 64, true, 0, 8}, {1, 65, 130, 2, 1, 24, false, 8, 16}};
}

// Causal with fewer keys than queries, and none.
inline std::vector<AttentionCase> mma_queries_without_keys() {
  return {{2, 200, 37, 2, 1, 64, true}, {1, 5, 0, 2, 1, 32, false}};
}

// Runs f.forward() on f.exact with q[i] and k[j] in feature 0 and zeros elsewhere; f.naive gets the
// same, rounded to T. One head, as many rows of v as before.
template <class T>
void forward_of_products(AttentionFixture<T>& f, const std::function<double(int64_t)>& q,
                         const std::function<double(int64_t)>& k) {
  const auto round = [](double x) { return widen(T(static_cast<float>(x))); };
  const auto fill = [&](std::vector<double>& x, int64_t rows, const auto& value) {
    x.assign(x.size(), 0.0);
    for (int64_t row = 0; row < rows; ++row) x[row * f.c.D] = round(value(row));
  };
  fill(f.exact.q, f.c.Tq, q);
  fill(f.exact.k, f.c.Tk, k);
  f.naive = f.exact;
  naive_attention(f.exact, f.s, [](double x) { return x; });
  naive_attention(f.naive, f.s, round);
  std::vector<T> image(static_cast<size_t>(f.layout.q.buffer_size()));
  f.layout.q.put(image, f.exact.q);
  f.q.upload(image);
  image.resize(static_cast<size_t>(f.layout.k.buffer_size()));
  f.layout.k.put(image, f.exact.k);
  f.layout.v.put(image, f.exact.v);
  f.kv.upload(image);
  f.forward();
}

// Keys without queries have no gradient.
template <class T>
void expect_zero_key_gradients(AttentionFixture<T>& f) {
  f.forward();
  f.backward();
  for (const double g : f.layout.k.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
  for (const double g : f.layout.v.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
}

// Detects a copy read before its arrival or overwritten while it is read: a thousand runs over
// poison must give the same bits. q, k and v have to lie in one buffer.
template <class T>
void expect_same_bits_a_thousand_times(AttentionFixture<T>& f) {
  std::vector<T> o, gradients;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    SCOPED_TRACE(::testing::Message() << f.c << " repeat " << repeat);
    f.o.poison();
    f.dq.poison();
    f.forward();
    f.backward();
    const auto o_again = f.o.download();
    const auto gradients_again = f.dq.download();
    if (repeat == 0) {
      o = o_again;
      gradients = gradients_again;
    }
    expect_same_bits(o_again, o);
    expect_same_bits(gradients_again, gradients);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Calls `check(b, h, i)` for each query that sees no key: if causal, the first Tq - Tk of a head;
// without keys, all.
template <class Check>
void for_each_blind_query(const AttentionCase& c, Check check) {
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < std::min(c.Tq, c.Tq - c.Tk); ++i) check(b, h, i);
    }
  }
}

// Element (b, h, i, 0) of packed (B, Tq, H, D).
inline int64_t packed_row(const AttentionCase& c, int64_t b, int64_t h, int64_t i) {
  return ((b * c.Tq + i) * c.H + h) * c.D;
}

inline void expect_zero_rows(const AttentionCase& c, const std::vector<double>& packed) {
  for_each_blind_query(c, [&](int64_t b, int64_t h, int64_t i) {
    for (int64_t d = 0; d < c.D; ++d) {
      ASSERT_EQ(packed[packed_row(c, b, h, i) + d], 0.0) << "b " << b << " h " << h << " i " << i;
    }
  });
}

// Call after f.forward(): the query's output is zero and its logsumexp that of an empty sum.
template <class T>
void expect_blind_outputs(AttentionFixture<T>& f) {
  expect_zero_rows(f.c, f.layout.o.take(f.o.download()));
  const auto lse = f.lse.download();
  for_each_blind_query(f.c, [&](int64_t b, int64_t h, int64_t i) {
    ASSERT_EQ(lse[(b * f.c.H + h) * f.c.Tq + i], -INFINITY)
        << "b " << b << " h " << h << " i " << i;
  });
}

// Call after f.backward(): the query has no gradient.
template <class T>
void expect_blind_gradients(AttentionFixture<T>& f) {
  expect_zero_rows(f.c, f.layout.q.take(f.dq.download()));
}

}  // namespace quern::test
