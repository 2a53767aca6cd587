#include "kernels/embedding.h"

#include "base/error.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(Embedding, PicksRowsAndSumsRepeats) {
  for_float_types([](auto t) {
    using T = decltype(t);
    using A = acc_t<T>;
    for (const int64_t n : kSizes) {
      const int64_t V = 11, C = 33;
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(i * i % 7));  // 7+ unused
      const auto w = random_vector<T>(V * C, 1), dy = random_vector<T>(n * C, 2);
      const auto before = random_vector<A>(V * C, 3);
      Guarded<T> y(n * C);
      cpu::embedding_forward(y.data(), w.data(), ids.data(), n, V, C, cpu::Stream{});
      std::vector<double> rows, sums(V * C, 0.0), added = doubles(before);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < C; ++c) {
          rows.push_back(to_double(w[ids[i] * C + c]));
          sums[ids[i] * C + c] += to_double(dy[i * C + c]);
          added[ids[i] * C + c] += to_double(dy[i * C + c]);
        }
      }
      expect_near(y.values(), rows, 0.0);

      Guarded<char> scratch(cpu::embedding_backward_scratch(n, V, C, cpu::Stream{}));
      Guarded<A> dw(V * C), dw_added(before);
      cpu::embedding_backward(dw.data(), dy.data(), ids.data(), n, V, C, false, scratch.data(),
                              cpu::Stream{});
      cpu::embedding_backward(dw_added.data(), dy.data(), ids.data(), n, V, C, true, scratch.data(),
                              cpu::Stream{});
      // Sums of up to 293 terms in order: their roundings add up like a random walk.
      expect_near(dw.values(), sums, 3 * tolerance<A>());
      expect_near(dw_added.values(), added, 3 * tolerance<A>());
      scratch.values();
    }
  });
}

TEST(Embedding, IdPastTheVocabularyThrows) {
  const float w[4] = {};
  float y[4];
  const int32_t ids[] = {1, -1};
  EXPECT_THROW(cpu::embedding_forward(y, w, ids, 2, 2, 2, cpu::Stream{}), Error);
}

}  // namespace
}  // namespace quern::kernels
