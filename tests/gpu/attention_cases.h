// Cases and checks that the tests of several attention kernels share.
#pragma once

#include "attention_fixture.h"

namespace quern::test {

inline constexpr int64_t kHopperDims[] = {64, 80, 128};  // what Hopper's kernels have tiles for

// `add(cases, D, causal)` for each of Hopper's head dimensions, causal and not.
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

// Around the sizes of tiles: 64 rows a warpgroup, 128 or 192 a block, 64 to 176 in the rings.
inline std::vector<AttentionCase> hopper_lengths() {
  return hopper_cases([](auto& cases, int64_t D, bool causal) {
    for (const int64_t T : {1, 2, 63, 65, 79, 95, 97, 127, 129, 160, 177, 193, 200, 321, 450}) {
      cases.push_back({1, T, T, 2, 1, D, causal});
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

// `check(b, h, i)` for each query that sees no key: causal, the first Tq - Tk of a head; without
// keys, all.
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

// After f.forward(): such a query's output is zero and its logsumexp that of nothing.
template <class T>
void expect_blind_outputs(AttentionFixture<T>& f) {
  expect_zero_rows(f.c, f.layout.o.take(f.o.download()));
  const auto lse = f.lse.download();
  for_each_blind_query(f.c, [&](int64_t b, int64_t h, int64_t i) {
    ASSERT_EQ(lse[(b * f.c.H + h) * f.c.Tq + i], -INFINITY)
        << "b " << b << " h " << h << " i " << i;
  });
}

// After f.backward(): it has no gradient.
template <class T>
void expect_blind_gradients(AttentionFixture<T>& f) {
  expect_zero_rows(f.c, f.layout.q.take(f.dq.download()));
}

}  // namespace quern::test
