#include "kernels/rope.h"

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
constexpr double kTheta = 10000.0;

// x lies inside a wider (B, T, 3, H, D) array; y is packed.
template <class T>
void check(int64_t D, const std::vector<int32_t>& positions, bool per_batch, int64_t first) {
  using A = acc_t<T>;
  const int64_t B = 2, times = 5, H = 3, wide = 3 * H * D;
  const auto x = random_vector<T>(B * times * wide, 1);
  std::vector<A> cos(64 * D / 2), sin(64 * D / 2);
  cpu::rope_table(cos.data(), sin.data(), 64, D, kTheta, {}, cpu::Stream{});
  RopeLayout layout{B, times, H, D};
  layout.x_strides[0] = times * wide, layout.x_strides[1] = wide, layout.x_strides[2] = D;
  layout.y_strides[0] = times * H * D, layout.y_strides[1] = H * D, layout.y_strides[2] = D;
  layout.first_position = first;
  layout.positions_per_batch = per_batch;
  layout.table_rows = 64;

  std::vector<double> expected;
  for (int64_t e = 0; e < B * times * H * D; ++e) {
    const int64_t d = e % D, h = e / D % H, t = e / (D * H) % times, b = e / (D * H * times);
    int64_t position = first + t;
    if (!positions.empty()) position = positions[per_batch ? b * times + t : t];
    const int64_t i = d % (D / 2);
    const double angle = position * std::pow(kTheta, -2.0 * i / D);
    const T* head = x.data() + (b * times + t) * wide + h * D;
    const double x1 = to_double(head[i]), x2 = to_double(head[i + D / 2]);
    expected.push_back(d < D / 2 ? x1 * std::cos(angle) - x2 * std::sin(angle)
                                 : x2 * std::cos(angle) + x1 * std::sin(angle));
  }
  Guarded<T> y(B * times * H * D), back(B * times * H * D);
  const int32_t* given = positions.empty() ? nullptr : positions.data();
  cpu::rope(y.data(), x.data(), cos.data(), sin.data(), given, layout, false, cpu::Stream{});
  expect_near(y.values(), expected);

  std::copy_n(layout.y_strides, 3, layout.x_strides);
  cpu::rope(back.data(), y.data(), cos.data(), sin.data(), given, layout, true, cpu::Stream{});
  std::vector<double> original;
  for (int64_t e = 0; e < B * times * H * D; ++e) {
    original.push_back(to_double(x[e / (D * H) * wide + e % (D * H)]));
  }
  expect_near(back.values(), original, 2 * tolerance<T>());  // two rotations

  cpu::rope(y.data(), y.data(), cos.data(), sin.data(), given, layout, true, cpu::Stream{});
  EXPECT_TRUE(same_bits(y.values(), back.values()));
}

TEST(Rope, RotatesHalves) {
  for_float_types([](auto t) {
    for (const int64_t D : {2, 16, 80}) {
      check<decltype(t)>(D, {}, false, 0);
      check<decltype(t)>(D, {}, false, 7);
      check<decltype(t)>(D, {9, 0, 3, 3, 50}, false, 0);
      check<decltype(t)>(D, {0, 1, 2, 3, 4, 9, 8, 7, 6, 5}, true, 0);
    }
  });
}

// tests/interop/make_rope_frequencies.py made the numbers with transformers.
TEST(Rope, ScaledFrequenciesAreTransformers) {
  const auto path = testing_support::source_folder() / "tests/fixtures/rope/frequencies.json";
  const nlohmann::json cases = nlohmann::json::parse(testing_support::read_file(path)).at("cases");
  ASSERT_EQ(cases.size(), 5u);
  for (const nlohmann::json& c : cases) {
    const nlohmann::json& rope = c.at("rope");
    const std::string type = rope.at("rope_type");
    RopeScaling scaling;
    if (type != "default") scaling.factor = rope.at("factor");
    if (type == "linear") scaling.kind = RopeScalingKind::linear;
    if (type == "llama3") {
      scaling = {RopeScalingKind::llama3, rope.at("factor"), rope.at("low_freq_factor"),
                 rope.at("high_freq_factor"), rope.at("original_max_position_embeddings")};
    }
    const int64_t D = c.at("head_dim");
    ASSERT_EQ(c.at("frequencies").size(), static_cast<size_t>(D / 2));
    for (int64_t i = 0; i < D / 2; ++i) {
      const double expected = c.at("frequencies")[static_cast<size_t>(i)];
      // transformers computes in FP32: a power, then up to six operations of 6e-8 each.
      EXPECT_NEAR(rope_frequency(i, D, c.at("theta"), scaling) / expected, 1.0, 1e-6)
          << rope << " " << i;
    }
  }
}

TEST(Rope, TableHoldsTheScaledAngles) {
  const RopeScaling scaling{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 64};
  constexpr int64_t D = 16, kPositions = 50;
  std::vector<double> cos(kPositions * D / 2), sin(cos.size());
  cpu::rope_table(cos.data(), sin.data(), kPositions, D, kTheta, scaling, cpu::Stream{});
  for (int64_t p = 0; p < kPositions; ++p) {
    for (int64_t i = 0; i < D / 2; ++i) {
      const double angle = static_cast<double>(p) * rope_frequency(i, D, kTheta, scaling);
      // A compiler may fuse multiply and add in one of the two copies of rope_frequency: an angle
      // up to 50 then differs by a few times 50 * 2^-53.
      EXPECT_NEAR(cos[static_cast<size_t>(p * D / 2 + i)], std::cos(angle), 5e-14);
      EXPECT_NEAR(sin[static_cast<size_t>(p * D / 2 + i)], std::sin(angle), 5e-14);
    }
  }
}

}  // namespace
}  // namespace quern::kernels
