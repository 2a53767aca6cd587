// FP8 on the GPU against the CPU: quantized matrices bit by bit, products by their norm.
#include "autograd/ops/fp8.h"

#include <limits>

#include "autograd/ops/linear.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/swiglu_mlp.h"
#include "autograd/tape.h"
#include "gpu/compare.h"
#include "gpu/device_buffer.h"
#include "kernels/device_traits.h"
#include "kernels/layer_norm.h"
#include "kernels/quantize.h"
#include "kernels/rms_norm.h"
#include "kernels/scaled_gemm.h"
#include "kernels/swiglu.h"
#include "support/fp8_matrices.h"
#include "tensor/factory.h"

namespace quern::test {
namespace {

using kernels::Fp8Output;
using kernels::ScaleBlocks;
using testing_support::Fp8Buffer;
using testing_support::random_matrix;

constexpr ScaleBlocks kBoth[] = {ScaleBlocks::rows, ScaleBlocks::tiles};
constexpr int64_t kSizes[][2] = {{1, 1},     {3, 20},     {16, 16},   {127, 129},
                                 {128, 128}, {200, 304},  {257, 48},  {40, 700},
                                 {8, 2048},  {1000, 136}, {512, 384}, {130, 4096}};

class Fp8Gpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !kernels::cuda::query_device_traits().hopper_code) {
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
  }
};

// A matrix in device memory, poisoned.
struct DeviceFp8 {
  DeviceBuffer<uint8_t> values;
  DeviceBuffer<float> scales;
  ScaleBlocks blocks;

  explicit DeviceFp8(const Fp8Buffer& like)
      : values(static_cast<int64_t>(like.values.size())),
        scales(static_cast<int64_t>(like.scales.size())),
        blocks(like.layout.blocks) {}
  Fp8Output output() { return {reinterpret_cast<float8*>(values.get()), scales.get(), blocks}; }
  void upload(const Fp8Buffer& x) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(x.values.data());
    values.upload({bytes, bytes + x.values.size()});
    scales.upload(x.scales);
  }
  void expect_equal(const Fp8Buffer& x) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(x.values.data());
    EXPECT_EQ(values.download(), std::vector<uint8_t>(bytes, bytes + x.values.size()));
    std::vector<float> actual = scales.download(), expected = x.scales;
    // Tiles are stored four at a time; those that pad them stay as they were.
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(actual[i])) actual[i] = expected[i] = 0.0f;
    }
    expect_same_bits(actual, expected);
    values.expect_guards_intact();
    scales.expect_guards_intact();
  }
};

TEST_F(Fp8Gpu, QuantizesAsTheCpuDoes) {
  for (const auto& [rows, cols] : kSizes) {
    for (const int64_t padding : {0, 3}) {
      for (const ScaleBlocks blocks : kBoth) {
        for (const ScaleBlocks turned : kBoth) {
          SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " + " << padding);
          const int64_t ld = cols + padding;
          const auto x = random_matrix(rows, ld, static_cast<uint32_t>(rows + cols));
          Fp8Buffer expected(rows, cols, blocks), expected_t(cols, rows, turned);
          kernels::cpu::quantize(expected.output(), expected_t.output(), x.data(), rows, cols, ld,
                                 {});
          DeviceBuffer<bfloat16> device_x(x);
          DeviceFp8 out(expected), out_t(expected_t), alone(expected), alone_t(expected_t);
          kernels::cuda::quantize(out.output(), out_t.output(), device_x.get(), rows, cols, ld, {});
          out.expect_equal(expected);
          out_t.expect_equal(expected_t);
          kernels::cuda::quantize(alone.output(), {}, device_x.get(), rows, cols, ld, {});
          kernels::cuda::quantize({}, alone_t.output(), device_x.get(), rows, cols, ld, {});
          alone.expect_equal(expected);
          alone_t.expect_equal(expected_t);
        }
      }
    }
  }
}

TEST_F(Fp8Gpu, ZerosTinyValuesAndWhatIsNotFinite) {
  std::vector<bfloat16> x(4 * 16, bfloat16(0.0f));
  x[16] = bfloat16(1e-38f);
  x[2 * 16 + 3] = bfloat16(std::numeric_limits<float>::infinity());
  x[3 * 16 + 4] = bfloat16(std::nanf(""));
  Fp8Buffer expected(4, 16, ScaleBlocks::rows), expected_t(16, 4, ScaleBlocks::tiles);
  kernels::cpu::quantize(expected.output(), expected_t.output(), x.data(), 4, 16, 16, {});
  DeviceBuffer<bfloat16> device_x(x);
  DeviceFp8 out(expected), out_t(expected_t);
  kernels::cuda::quantize(out.output(), out_t.output(), device_x.get(), 4, 16, 16, {});
  out.expect_equal(expected);
  out_t.expect_equal(expected_t);
}

// The fused sources give the bits of the kernel that they fuse, then quantized.
TEST_F(Fp8Gpu, SwigluEqualsItsSteps) {
  for (const auto& [rows, F] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << F << ", shift " << shift);
      DeviceBuffer<bfloat16> gate_up(random_values<bfloat16>(rows * 2 * F, 1, -4.0, 4.0), shift);
      DeviceBuffer<bfloat16> dy(random_values<bfloat16>(rows * F, 2), shift);
      DeviceBuffer<bfloat16> y(rows * F, shift), d(rows * 2 * F, shift);
      kernels::cuda::swiglu_forward(y.get(), gate_up.get(), rows, F, {});
      kernels::cuda::swiglu_backward<bfloat16>(d.get(), nullptr, gate_up.get(), dy.get(), rows, F,
                                               {});
      Fp8Buffer of_y(rows, F, ScaleBlocks::rows), of_y_t(F, rows, ScaleBlocks::tiles);
      kernels::cpu::quantize(of_y.output(), of_y_t.output(), y.download().data(), rows, F, F, {});
      DeviceFp8 out(of_y), out_t(of_y_t);
      kernels::cuda::quantize_swiglu(out.output(), out_t.output(), gate_up.get(), rows, F, {});
      out.expect_equal(of_y);
      out_t.expect_equal(of_y_t);
      Fp8Buffer of_d(rows, 2 * F, ScaleBlocks::rows), of_d_t(2 * F, rows, ScaleBlocks::rows);
      kernels::cpu::quantize(of_d.output(), of_d_t.output(), d.download().data(), rows, 2 * F,
                             2 * F, {});
      DeviceFp8 grad(of_d), grad_t(of_d_t);
      kernels::cuda::quantize_swiglu_gradient(grad.output(), grad_t.output(), {}, gate_up.get(),
                                              dy.get(), rows, F, {});
      grad.expect_equal(of_d);
      grad_t.expect_equal(of_d_t);
      // The output's transpose with every part of the others, in both layouts of scales.
      Fp8Buffer of_rows_t(F, rows, ScaleBlocks::rows);
      kernels::cpu::quantize({}, of_rows_t.output(), y.download().data(), rows, F, F, {});
      for (const bool rows_too : {false, true}) {
        for (const bool columns_too : {false, true}) {
          const Fp8Buffer& expected_t = rows_too == columns_too ? of_rows_t : of_y_t;
          DeviceFp8 some(of_d), some_t(of_d_t), output_t(expected_t);
          kernels::cuda::quantize_swiglu_gradient(
              rows_too ? some.output() : Fp8Output(), columns_too ? some_t.output() : Fp8Output(),
              output_t.output(), gate_up.get(), dy.get(), rows, F, {});
          if (rows_too) some.expect_equal(of_d);
          if (columns_too) some_t.expect_equal(of_d_t);
          output_t.expect_equal(expected_t);
        }
      }
    }
  }
}

template <class TX>
void expect_norms_quantized(int64_t rows, int64_t C, int64_t shift) {
  DeviceBuffer<TX> x(random_values<TX>(rows * C, 1, -3.0, 3.0), shift);
  DeviceBuffer<float> w(random_values<float>(C, 2, 0.5, 2.0), shift);
  DeviceBuffer<float> b(random_values<float>(C, 3), shift);
  DeviceBuffer<float> mean(rows), rstd(rows);
  DeviceBuffer<bfloat16> y(rows * C, shift);
  for (const bool centred : {false, true}) {
    SCOPED_TRACE(::testing::Message()
                 << rows << " x " << C << ", shift " << shift << ", centred " << centred);
    if (centred) {
      kernels::cuda::add_layer_norm_forward<TX, bfloat16>(nullptr, y.get(), mean.get(), rstd.get(),
                                                          x.get(), nullptr, w.get(), b.get(), rows,
                                                          C, 1e-5, {});
    } else {
      kernels::cuda::add_rms_norm_forward<TX, bfloat16>(nullptr, y.get(), rstd.get(), x.get(),
                                                        nullptr, w.get(), rows, C, 1e-5, {});
    }
    Fp8Buffer expected(rows, C, ScaleBlocks::rows), expected_t(C, rows, ScaleBlocks::rows);
    kernels::cpu::quantize(expected.output(), expected_t.output(), y.download().data(), rows, C, C,
                           {});
    DeviceFp8 out(expected), out_t(expected_t), alone_t(expected_t);
    const kernels::NormOutput<TX> norm{x.get(), w.get(), centred ? b.get() : nullptr,
                                       centred ? mean.get() : nullptr, rstd.get()};
    kernels::cuda::quantize_norm(out.output(), out_t.output(), norm, rows, C, {});
    out.expect_equal(expected);
    out_t.expect_equal(expected_t);
    kernels::cuda::quantize_norm({}, alone_t.output(), norm, rows, C, {});
    alone_t.expect_equal(expected_t);
  }
}

TEST_F(Fp8Gpu, NormsEqualTheirSteps) {
  for (const auto& [rows, C] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      expect_norms_quantized<bfloat16>(rows, C, shift);
      expect_norms_quantized<float>(rows, C, shift);
    }
  }
}

// Runs on the current Context's device: y = x w^T, and gradients of x and w.
std::vector<std::vector<float>> run_linear(const Tensor& x, const Tensor& w, const Tensor& dy,
                                           Device device) {
  const Fp8Products products(true);
  const Variable at_x = Variable::leaf(x.to(device)), at_w = Variable::leaf(w.to(device));
  const Variable y = linear(at_x, at_w);
  backward(y, dy.to(device));
  std::vector<std::vector<float>> values;
  for (const Tensor& t : {y.value(), at_x.grad(), at_w.grad()}) {
    values.push_back(t.to(DType::f32).to_vector<float>());
  }
  return values;
}

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = double{actual[i]} - double{expected[i]};
    difference += error * error;
    norm += double{expected[i]} * double{expected[i]};
  }
  return std::sqrt(difference / norm);
}

// Tensor cores keep fewer bits of a sum than FP32; BF16 results add their rounding (2^-9 each).
constexpr double kProduct = 4e-3;

TEST_F(Fp8Gpu, LinearIsThatOfTheCpu) {
  Context gpu(Device{DeviceType::cuda, 0});
  Context host(kCpu);
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{64, 128, 48},
                                      {33, 70, 41},
                                      {1, 256, 16},
                                      {200, 24, 300},
                                      {16, 400, 1},
                                      {4, 16, 16},
                                      {512, 1344, 640},
                                      {1000, 384, 1152}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << in << " x " << out);
    std::vector<Tensor> tensors;
    std::vector<std::vector<float>> expected, actual;
    {
      const ContextScope scope(host);
      for (const Shape& shape : {Shape{rows, in}, Shape{out, in}, Shape{rows, out}}) {
        tensors.push_back(normal(shape, 0.0, 1.0).to(DType::bf16));
      }
      expected = run_linear(tensors[0], tensors[1], tensors[2], kCpu);
    }
    const ContextScope scope(gpu);
    actual = run_linear(tensors[0], tensors[1], tensors[2], gpu.device());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(relative_error(actual[i], expected[i]), kProduct) << "value " << i;
    }
    const auto again = run_linear(tensors[0], tensors[1], tensors[2], gpu.device());
    for (size_t i = 0; i < again.size(); ++i) expect_same_bits(again[i], actual[i]);
  }
}

// A weight's gradient in FP32, written and added to: every mode of the library's products.
TEST_F(Fp8Gpu, ProductsOfEveryKind) {
  Context gpu(Device{DeviceType::cuda, 0});
  const ContextScope scope(gpu);
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{48, 64, 16}, {128, 256, 208}, {37, 90, 1000}, {640, 320, 4096}}) {
    for (const auto& [a_operand, b_operand] :
         {std::pair(detail::Fp8Operand::activation, detail::Fp8Operand::weight),
          {detail::Fp8Operand::weight, detail::Fp8Operand::gradient},
          {detail::Fp8Operand::activation, detail::Fp8Operand::gradient}}) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << ' ' << dtype);
        const Tensor a = normal({m, k}, 0.0, 1.0, DType::bf16);
        const Tensor b = normal({n, k}, 0.0, 1.0, DType::bf16);
        const auto product = [&](const Tensor& d, bool add) {
          detail::fp8_product(d, detail::quantize(a, a_operand, {.transpose = false}).matrix,
                              detail::quantize(b, b_operand, {.transpose = false}).matrix, add);
        };
        const Tensor once = Tensor::empty({m, n}, dtype), twice = Tensor::empty({m, n}, dtype);
        fill(once, std::nan(""));
        product(once, false);
        copy(twice, once);
        product(twice, true);
        const auto single = once.to(DType::f32).to_vector<float>();
        auto doubled = single;
        for (float& x : doubled) x *= 2.0f;
        EXPECT_LT(relative_error(twice.to(DType::f32).to_vector<float>(), doubled), kProduct);
        Context host(kCpu);
        const ContextScope on_host(host);
        const Tensor expected = Tensor::empty({m, n}, DType::f32);
        detail::fp8_product(
            expected, detail::quantize(a.to(kCpu), a_operand, {.transpose = false}).matrix,
            detail::quantize(b.to(kCpu), b_operand, {.transpose = false}).matrix, false);
        EXPECT_LT(relative_error(single, expected.to_vector<float>()), kProduct);
      }
    }
  }
}

}  // namespace
}  // namespace quern::test
