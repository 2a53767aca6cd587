// SwiGLU fused into the products beside it. With inputs -1, 0 and 1 the sums are integers that BF16
// holds (below 256), so the results equal the separate steps bit for bit.
#include "kernels/swiglu_product.h"

#include <random>

#include "autograd/ops/linear.h"
#include "autograd/ops/swiglu.h"
#include "autograd/tape.h"
#include "gpu/compare.h"
#include "kernels/swiglu.h"
#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern::test {
namespace {

using kernels::SwigluSizes;
using kernels::cuda::Stream;

class SwigluProductHopper : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!kernels::cuda::swiglu_product_runs({128, 64, 64}, Stream{})) {
      GTEST_SKIP() << "no Hopper code";
    }
  }
};

std::vector<bfloat16> units(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<bfloat16> values(static_cast<size_t>(n));
  for (bfloat16& v : values) v = bfloat16(static_cast<float>(static_cast<int>(engine() % 3) - 1));
  return values;
}

// a (m, k), b (k, n) or transposed, (n, k).
std::vector<bfloat16> product(const std::vector<bfloat16>& a, const std::vector<bfloat16>& b,
                              int64_t m, int64_t n, int64_t k, bool transposed) {
  std::vector<int8_t> x(a.size()), y(b.size());
  for (size_t i = 0; i < a.size(); ++i) x[i] = static_cast<int8_t>(static_cast<float>(a[i]));
  for (int64_t i = 0; i < n * k; ++i) {  // by rows of n
    const int64_t from = transposed ? i % n * k + i / n : i;
    y[static_cast<size_t>(i)] =
        static_cast<int8_t>(static_cast<float>(b[static_cast<size_t>(from)]));
  }
  std::vector<bfloat16> d(static_cast<size_t>(m * n));
  std::vector<int16_t> sums(static_cast<size_t>(n));
  for (int64_t row = 0; row < m; ++row) {
    std::fill(sums.begin(), sums.end(), int16_t{0});
    for (int64_t i = 0; i < k; ++i) {
      const int16_t factor = x[static_cast<size_t>(row * k + i)];
      const int8_t* const line = y.data() + i * n;
      for (int64_t c = 0; c < n; ++c) sums[static_cast<size_t>(c)] += factor * line[c];
    }
    for (int64_t c = 0; c < n; ++c) {
      d[static_cast<size_t>(row * n + c)] =
          bfloat16(static_cast<float>(sums[static_cast<size_t>(c)]));
    }
  }
  return d;
}

// Rows, columns and depths that fill tiles, and some that do not.
constexpr SwigluSizes kSizes[] = {{1, 8, 8},        {5, 72, 24},       {128, 64, 128},
                                  {129, 64, 256},   {257, 136, 136},   {300, 768, 520},
                                  {1025, 200, 264}, {512, 1536, 1000}, {9000, 8, 2056}};

TEST_F(SwigluProductHopper, ForwardHasTheBitsOfTheSteps) {
  for (const SwigluSizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.C << " x " << s.F);
    const auto x = units(s.rows * s.C, 1), w = units(2 * s.F * s.C, 2);
    const auto gate_up = product(x, w, s.rows, 2 * s.F, s.C, true);
    DeviceBuffer<bfloat16> device_x(x), device_w(w), made(s.rows * 2 * s.F), y(s.rows * s.F);
    const auto forward = [&] {
      kernels::cuda::swiglu_product_forward(made.get(), y.get(), device_x.get(), device_w.get(), s,
                                            Stream{});
    };
    expect_same_bits(run_twice(made, forward), gate_up);
    const auto output = run_twice(y, forward);
    kernels::cuda::swiglu_forward(y.get(), made.get(), s.rows, s.F, Stream{});
    expect_same_bits(output, y.download());
  }
}

TEST_F(SwigluProductHopper, BackwardHasTheBitsOfTheSteps) {
  for (const SwigluSizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.C << " x " << s.F);
    const auto dz = units(s.rows * s.C, 1), w = units(s.C * s.F, 2);
    const auto gate_up = random_values<bfloat16>(s.rows * 2 * s.F, 3, -8.0, 8.0);
    DeviceBuffer<bfloat16> device_dz(dz), device_w(w), device_gate_up(gate_up);
    DeviceBuffer<bfloat16> d_gate_up(s.rows * 2 * s.F), y(s.rows * s.F);
    const auto backward = [&] {
      kernels::cuda::swiglu_product_backward(d_gate_up.get(), y.get(), device_gate_up.get(),
                                             device_dz.get(), device_w.get(), s, Stream{});
    };
    const auto gradient = run_twice(d_gate_up, backward);
    const auto output = run_twice(y, backward);
    y.upload(product(dz, w, s.rows, s.F, s.C, false));
    d_gate_up.poison();
    kernels::cuda::swiglu_backward(d_gate_up.get(), y.get(), device_gate_up.get(), y.get(), s.rows,
                                   s.F, Stream{});
    expect_same_bits(gradient, d_gate_up.download());
    expect_same_bits(output, y.download());
  }
}

TEST_F(SwigluProductHopper, BackwardWithoutTheOutputHasTheBitsOfThatWithIt) {
  for (const SwigluSizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.C << " x " << s.F);
    const auto dz = random_values<bfloat16>(s.rows * s.C, 1),
               w = random_values<bfloat16>(s.C * s.F, 2);
    const auto gate_up = random_values<bfloat16>(s.rows * 2 * s.F, 3, -8.0, 8.0);
    DeviceBuffer<bfloat16> device_dz(dz), device_w(w), device_gate_up(gate_up);
    DeviceBuffer<bfloat16> d_gate_up(s.rows * 2 * s.F), y(s.rows * s.F);
    const auto backward = [&](bfloat16* output) {
      kernels::cuda::swiglu_product_backward(d_gate_up.get(), output, device_gate_up.get(),
                                             device_dz.get(), device_w.get(), s, Stream{});
    };
    backward(y.get());
    const auto gradient = d_gate_up.download();
    expect_same_bits(run_twice(d_gate_up, [&] { backward(nullptr); }), gradient);
    expect_same_bits(device_gate_up.download(), gate_up);
    for (DeviceBuffer<bfloat16>* in : {&device_dz, &device_w, &device_gate_up}) {
      in->expect_guards_intact();
    }
  }
}

// Sums of any numbers: as accurate as float sums and one rounding to BF16.
TEST_F(SwigluProductHopper, SumsAreFloats) {
  const SwigluSizes s{130, 1000, 136};
  const auto x = random_values<bfloat16>(s.rows * s.C, 1),
             w = random_values<bfloat16>(2 * s.F * s.C, 2);
  DeviceBuffer<bfloat16> device_x(x), device_w(w), made(s.rows * 2 * s.F), y(s.rows * s.F);
  kernels::cuda::swiglu_product_forward(made.get(), y.get(), device_x.get(), device_w.get(), s,
                                        Stream{});
  const auto gate_up = made.download();
  for (int64_t i = 0; i < s.rows * 2 * s.F; ++i) {
    double sum = 0.0, size = 0.0;
    for (int64_t k = 0; k < s.C; ++k) {
      const double term =
          double{static_cast<float>(x[static_cast<size_t>(i / (2 * s.F) * s.C + k)])} *
          static_cast<float>(w[static_cast<size_t>(i % (2 * s.F) * s.C + k)]);
      sum += term;
      size += std::abs(term);
    }
    // The tensor cores truncate sums at about 2^-23 of the largest term, at most a thousand times.
    ASSERT_NEAR(static_cast<float>(gate_up[static_cast<size_t>(i)]), sum,
                rounding<bfloat16>() * std::abs(sum) + 1e-5 * size)
        << "element " << i;
  }
}

TEST_F(SwigluProductHopper, AThousandTimesTheSameBits) {
  const SwigluSizes s{1500, 320, 776};
  const auto x = random_values<bfloat16>(s.rows * s.C, 1),
             w = random_values<bfloat16>(2 * s.F * s.C, 2);
  const auto down = random_values<bfloat16>(s.C * s.F, 3);
  DeviceBuffer<bfloat16> device_x(x), device_w(w), device_down(down);
  DeviceBuffer<bfloat16> made(s.rows * 2 * s.F), y(s.rows * s.F), d_gate_up(s.rows * 2 * s.F);
  std::vector<bfloat16> first[3];
  for (int i = 0; i < 1000; ++i) {
    for (DeviceBuffer<bfloat16>* out : {&made, &y, &d_gate_up}) out->poison();
    kernels::cuda::swiglu_product_forward(made.get(), y.get(), device_x.get(), device_w.get(), s,
                                          Stream{});
    const auto output = y.download();
    y.poison();
    kernels::cuda::swiglu_product_backward(d_gate_up.get(), y.get(), made.get(), device_x.get(),
                                           device_down.get(), s, Stream{});
    if (i == 0) first[0] = made.download(), first[1] = output, first[2] = d_gate_up.download();
    expect_same_bits(made.download(), first[0]);
    expect_same_bits(output, first[1]);
    expect_same_bits(y.download(), first[1]);
    expect_same_bits(d_gate_up.download(), first[2]);
    if (HasFatalFailure()) FAIL() << "repeat " << i;
  }
  for (DeviceBuffer<bfloat16>* out : {&made, &y, &d_gate_up}) out->expect_guards_intact();
}

TEST_F(SwigluProductHopper, TakesWhatTmaCanAddress) {
  EXPECT_FALSE(kernels::cuda::swiglu_product_runs({128, 68, 64}, Stream{}));
  EXPECT_FALSE(kernels::cuda::swiglu_product_runs({128, 64, 68}, Stream{}));
  EXPECT_FALSE(kernels::cuda::swiglu_product_runs({0, 64, 64}, Stream{}));
  DeviceBuffer<bfloat16> some(4096, 1);
  EXPECT_THROW(kernels::cuda::swiglu_product_forward(some.get(), some.get(), some.get(), some.get(),
                                                     {8, 8, 8}, Stream{}),
               Error);
}

// The ops of a layer for x (N, C), and the gradients for dz (N, C).
struct Layer {
  Variable x, up, down;
  std::vector<float> z, dx, d_up, d_down;
  bool product = false;  // SwiGLU's output came with the product

  Layer(const Tensor& x_in, const Tensor& up_in, const Tensor& down_in)
      : x(Variable::leaf(x_in)), up(Variable::leaf(up_in)), down(Variable::leaf(down_in)) {}

  void finish(const Variable& out, const Tensor& dz) {
    z = out.value().to(DType::f32).to_vector<float>();
    backward(out, dz);
    dx = x.grad().to(DType::f32).to_vector<float>();
    d_up = up.grad().to(DType::f32).to_vector<float>();
    d_down = down.grad().to(DType::f32).to_vector<float>();
  }
};

// Through the ops: large matrices use the fused products, with the bits of the separate ops. x is
// such that gate and up are whole numbers.
TEST_F(SwigluProductHopper, OpsTakeIt) {
  Context context(Device{DeviceType::cuda, 0}, 1);
  const ContextScope scope(context);
  constexpr int64_t N = 2048, C = 64, F = 1344;
  ASSERT_TRUE(kernels::cuda::swiglu_product_forward_pays({N, C, F}, context.cuda_stream()));
  ASSERT_TRUE(kernels::cuda::swiglu_product_backward_pays({N, C, F}, context.cuda_stream()));
  EXPECT_FALSE(kernels::cuda::swiglu_product_backward_pays({1, C, F}, context.cuda_stream()));
  const Tensor x = from_vector(units(N * C, 1), {2, N / 2, C});
  const Tensor up = from_vector(units(2 * F * C, 2), {2 * F, C});
  const Tensor down = from_vector(units(C * F, 3), {C, F});
  const Tensor dz = from_vector(units(N * C, 4), {2, N / 2, C});
  Layer steps(x, up, down), one(x, up, down), strided(x, up, down), frozen(x, up, down);
  const Variable h = swiglu(linear(steps.x, steps.up));
  steps.finish(linear(h, steps.down), dz);

  const GateUpResult made = gate_up_linear(one.x, one.up);
  ASSERT_TRUE(made.output.defined());
  EXPECT_EQ(made.output.shape(), (Shape{2, N / 2, F}));
  EXPECT_TRUE(made.output.to(DType::f32).to_vector<float>() ==
              h.value().to(DType::f32).to_vector<float>());
  one.finish(swiglu_linear(made.gate_up, one.down, made.output), dz);
  EXPECT_TRUE(one.z == steps.z);
  EXPECT_TRUE(one.dx == steps.dx);
  EXPECT_TRUE(one.d_up == steps.d_up);
  EXPECT_TRUE(one.d_down == steps.d_down);

  // Non-contiguous gradients and weights not aligned to 16 bytes take the separate steps.
  const Tensor wide = zeros({2, N / 2, 2 * C}, DType::bf16);
  copy(wide.slice(2, 0, C), dz);
  strided.finish(swiglu_linear(gate_up_linear(strided.x, strided.up).gate_up, strided.down),
                 wide.slice(2, 0, C));
  EXPECT_TRUE(strided.dx == steps.dx);
  EXPECT_TRUE(strided.d_down == steps.d_down);
  const Tensor shifted = zeros({2 * F * C + 1}, DType::bf16).slice(0, 1, 2 * F * C + 1);
  copy(shifted, up.reshape({2 * F * C}));
  const GateUpResult unaligned = gate_up_linear(x, shifted.reshape({2 * F, C}));
  EXPECT_FALSE(unaligned.output.defined());
  EXPECT_TRUE(unaligned.gate_up.value().to(DType::f32).to_vector<float>() ==
              made.gate_up.value().to(DType::f32).to_vector<float>());

  // Only the down projection.
  const Variable z = swiglu_linear(made.gate_up.value(), frozen.down, made.output);
  backward(z, dz);
  EXPECT_TRUE(frozen.down.grad().to(DType::f32).to_vector<float>() == steps.d_down);
}

// SwiGLU's output is kept or recomputed: by the fused products, or by separate steps if rows are
// too few. Both must sum in the same order.
TEST_F(SwigluProductHopper, AKeptOutputGivesTheSameBits) {
  Context context(Device{DeviceType::cuda, 0}, 1);
  const ContextScope scope(context);
  constexpr int64_t C = 520, F = 1344;
  ASSERT_TRUE(kernels::cuda::swiglu_product_backward_pays({2048, C, F}, context.cuda_stream()));
  ASSERT_FALSE(kernels::cuda::swiglu_product_backward_pays({5, C, F}, context.cuda_stream()));
  for (const int64_t N : {2048, 5}) {
    SCOPED_TRACE(::testing::Message() << N << " rows");
    const auto numbers = [](const Shape& shape, uint32_t seed) {
      return from_vector(random_values<bfloat16>(shape.numel(), seed), shape);
    };
    const Tensor x = numbers({N, C}, 1), up = numbers({2 * F, C}, 2), down = numbers({C, F}, 3);
    const Tensor dz = numbers({N, C}, 4);
    Layer again(x, up, down), kept(x, up, down);
    const auto run = [&](Layer& layer, ActivationOutput output) {
      const GateUpResult made = gate_up_linear(layer.x, layer.up);
      layer.finish(swiglu_linear(made.gate_up, layer.down, made.output, output), dz);
    };
    run(again, ActivationOutput::rebuilt);
    run(kept, ActivationOutput::kept);
    EXPECT_TRUE(kept.z == again.z);
    EXPECT_TRUE(kept.dx == again.dx);
    EXPECT_TRUE(kept.d_up == again.d_up);
    EXPECT_TRUE(kept.d_down == again.d_down);
  }
}

}  // namespace
}  // namespace quern::test
