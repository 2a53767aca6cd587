#include "kernels/quantize.h"

#include <limits>
#include <map>

#include "kernels/layer_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "support/fp8_matrices.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
using testing_support::Fp8Buffer;
using testing_support::random_matrix;

constexpr ScaleBlocks kBoth[] = {ScaleBlocks::rows, ScaleBlocks::tiles};

// The largest magnitude in the block with element (row, k) of the matrix that at(row, k) gives.
template <class At>
double largest_around(const Fp8Buffer& x, int64_t row, int64_t k, const At& at) {
  const bool tiles = x.layout.blocks == ScaleBlocks::tiles;
  const int64_t top = tiles ? row / 128 * 128 : row, bottom = tiles ? top + 128 : row + 1;
  double largest = 0.0;
  for (int64_t r = top; r < std::min(bottom, x.rows); ++r) {
    for (int64_t c = k / 128 * 128; c < std::min(k / 128 * 128 + 128, x.depth); ++c) {
      largest = std::max(largest, std::abs(at(r, c)));
    }
  }
  return largest;
}

// Every element is the nearest of its block, every scale maps the largest to 448, the rest is zero.
template <class At>
void expect_quantized(const Fp8Buffer& x, const At& at) {
  std::map<int64_t, double> largest_of;  // by the block's scale
  for (int64_t r = 0; r < x.layout.rows; ++r) {
    for (int64_t c = 0; c < x.layout.depth; ++c) {
      ASSERT_TRUE(std::isfinite(x.scale(r, c))) << r << ", " << c;
      if (r >= x.rows || c >= x.depth) {
        ASSERT_EQ(x.value(r, c), 0.0) << r << ", " << c;
        continue;
      }
      const auto [block, is_new] = largest_of.try_emplace(x.layout.at(r, c));
      if (is_new) block->second = largest_around(x, r, c, at);
      const double largest = block->second;
      ASSERT_NEAR(x.scale(r, c) * 448.0, largest, 1e-6 * largest + 1e-29) << r << ", " << c;
      // Half a place of three mantissa bits, or of the smallest: 2^-10 of the block's scale.
      const double bound = std::max(std::abs(at(r, c)) / 16.0, x.scale(r, c) * 0x1p-10);
      ASSERT_LE(std::abs(x(r, c) - at(r, c)), bound * 1.0001) << r << ", " << c;
    }
  }
}

TEST(Quantize, MatrixAndTranspose) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                   {3, 20},
                                   {16, 16},
                                   {127, 129},
                                   {128, 128},
                                   {200, 300},
                                   {257, 48},
                                   {40, 700}}) {
    for (const ScaleBlocks blocks : kBoth) {
      for (const ScaleBlocks turned : kBoth) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols);
        const int64_t ld = cols + 3;
        const auto x = random_matrix(rows, ld, 1);
        const auto at = [&](int64_t r, int64_t c) { return to_double(x[r * ld + c]); };
        Fp8Buffer out(rows, cols, blocks), out_t(cols, rows, turned);
        cpu::quantize(out.output(), out_t.output(), x.data(), rows, cols, ld, {});
        expect_quantized(out, at);
        expect_quantized(out_t, [&](int64_t r, int64_t c) { return at(c, r); });
        Fp8Buffer alone(rows, cols, blocks), alone_t(cols, rows, turned);
        cpu::quantize(alone.output(), {}, x.data(), rows, cols, ld, {});
        cpu::quantize({}, alone_t.output(), x.data(), rows, cols, ld, {});
        EXPECT_TRUE(same_bits(alone.values, out.values) && same_bits(alone.scales, out.scales));
        EXPECT_TRUE(same_bits(alone_t.values, out_t.values));
        EXPECT_TRUE(same_bits(alone_t.scales, out_t.scales));
      }
    }
  }
}

TEST(Quantize, AnOutlierCostsItsOwnRowAlone) {
  auto x = random_vector<bfloat16>(128 * 128, 2, -1.0, 1.0);
  Fp8Buffer before(128, 128, ScaleBlocks::rows), after(128, 128, ScaleBlocks::rows);
  cpu::quantize(before.output(), {}, x.data(), 128, 128, 128, {});
  x[5 * 128 + 7] = bfloat16(1e4f);
  cpu::quantize(after.output(), {}, x.data(), 128, 128, 128, {});
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t c = 0; c < 128; ++c) {
      if (r == 5) continue;
      ASSERT_EQ(after(r, c), before(r, c));
    }
  }
  EXPECT_NEAR(after(5, 7), to_double(bfloat16(1e4f)), 1e-2);
}

TEST(Quantize, ZerosTinyValuesAndWhatIsNotFinite) {
  std::vector<bfloat16> x(4 * 16, bfloat16(0.0f));
  x[16] = bfloat16(1e-38f);
  x[2 * 16 + 3] = bfloat16(std::numeric_limits<float>::infinity());
  x[3 * 16 + 4] = bfloat16(std::nanf(""));
  Fp8Buffer out(4, 16, ScaleBlocks::rows);
  cpu::quantize(out.output(), {}, x.data(), 4, 16, 16, {});
  for (int64_t c = 0; c < 16; ++c) {
    EXPECT_EQ(out(0, c), 0.0);
    EXPECT_EQ(out(1, c), 0.0) << "too small for a finite inverse of the scale";
    EXPECT_TRUE(std::isnan(out(2, c)));
    EXPECT_TRUE(std::isnan(out(3, c)));
  }
}

TEST(Quantize, SwigluAndItsGradient) {
  for (const auto& [rows, F] : {std::pair<int64_t, int64_t>{5, 24}, {130, 72}, {64, 200}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << F);
    const auto gate_up = random_vector<bfloat16>(rows * 2 * F, 3, -4.0, 4.0);
    const auto dy = random_vector<bfloat16>(rows * F, 4);
    std::vector<double> y(rows * F), d(rows * 2 * F);
    cpu::swiglu_forward(y.data(), doubles(gate_up).data(), rows, F, {});
    cpu::swiglu_backward<double>(d.data(), nullptr, doubles(gate_up).data(), doubles(dy).data(),
                                 rows, F, {});
    const auto rounded = [](std::vector<double>& x) {
      for (double& v : x) v = to_double(from_double<bfloat16>(v));
    };
    rounded(y), rounded(d);
    Fp8Buffer out(rows, F, ScaleBlocks::rows), out_t(F, rows, ScaleBlocks::tiles);
    cpu::quantize_swiglu(out.output(), out_t.output(), gate_up.data(), rows, F, {});
    expect_quantized(out, [&](int64_t r, int64_t c) { return y[r * F + c]; });
    expect_quantized(out_t, [&](int64_t r, int64_t c) { return y[c * F + r]; });
    Fp8Buffer grad(rows, 2 * F, ScaleBlocks::rows), grad_t(2 * F, rows, ScaleBlocks::rows);
    Fp8Buffer again_t(F, rows, ScaleBlocks::tiles);
    cpu::quantize_swiglu_gradient(grad.output(), grad_t.output(), again_t.output(), gate_up.data(),
                                  dy.data(), rows, F, {});
    EXPECT_TRUE(same_bits(again_t.values, out_t.values));
    EXPECT_TRUE(same_bits(again_t.scales, out_t.scales));
    expect_quantized(grad, [&](int64_t r, int64_t c) { return d[r * 2 * F + c]; });
    expect_quantized(grad_t, [&](int64_t r, int64_t c) { return d[c * 2 * F + r]; });
  }
}

// The bits of the norm's own output, quantized.
template <class TX>
void expect_norms_quantized(int64_t rows, int64_t C) {
  const auto x = random_vector<TX>(rows * C, 5, -3.0, 3.0);
  const auto w = random_vector<float>(C, 6, 0.5, 2.0), b = random_vector<float>(C, 7);
  std::vector<float> mean(rows), rstd(rows);
  std::vector<bfloat16> y(rows * C);
  for (const bool centred : {false, true}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << C << ", centred " << centred);
    if (centred) {
      cpu::add_layer_norm_forward<TX, bfloat16>(nullptr, y.data(), mean.data(), rstd.data(),
                                                x.data(), nullptr, w.data(), b.data(), rows, C,
                                                1e-5, {});
    } else {
      cpu::add_rms_norm_forward<TX, bfloat16>(nullptr, y.data(), rstd.data(), x.data(), nullptr,
                                              w.data(), rows, C, 1e-5, {});
    }
    Fp8Buffer expected(rows, C, ScaleBlocks::rows), expected_t(C, rows, ScaleBlocks::rows);
    cpu::quantize(expected.output(), expected_t.output(), y.data(), rows, C, C, {});
    Fp8Buffer out(rows, C, ScaleBlocks::rows), out_t(C, rows, ScaleBlocks::rows);
    const NormOutput<TX> norm{x.data(), w.data(), centred ? b.data() : nullptr,
                              centred ? mean.data() : nullptr, rstd.data()};
    cpu::quantize_norm(out.output(), out_t.output(), norm, rows, C, {});
    EXPECT_TRUE(same_bits(out.values, expected.values) && same_bits(out.scales, expected.scales));
    EXPECT_TRUE(same_bits(out_t.values, expected_t.values));
    EXPECT_TRUE(same_bits(out_t.scales, expected_t.scales));
  }
}

TEST(Quantize, NormsOfBothStreams) {
  for (const auto& [rows, C] : {std::pair<int64_t, int64_t>{1, 1}, {5, 24}, {130, 72}, {64, 200}}) {
    expect_norms_quantized<bfloat16>(rows, C);
    expect_norms_quantized<float>(rows, C);
  }
}

}  // namespace
}  // namespace quern::kernels
