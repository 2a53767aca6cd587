// Embedding rows and their gradients: the same bits as the CPU, which sums in the order of tokens.
#include "kernels/embedding.h"

#include "compare.h"

namespace quern::test {
namespace {

class EmbeddingGpu : public GpuTest {};

struct Case {
  int64_t n, V, C;
  bool skewed = false;  // most tokens are one id
};

const Case kCases[] = {{0, 10, 8},        {1, 1, 1},         {31, 7, 33},
                       {33, 256, 64},     {1025, 256, 5},    {1025, 257, 130},
                       {5000, 50257, 16}, {4097, 200000, 3}, {9000, 300, 40, true},
                       {16384, 256, 384}};

std::vector<int32_t> ids_of(const Case& c) {
  std::mt19937 engine(7);
  std::vector<int32_t> ids(static_cast<size_t>(c.n));
  for (int32_t& id : ids) {
    id = c.skewed && engine() % 8 != 0 ? static_cast<int32_t>(c.V - 1)
                                       : static_cast<int32_t>(engine() % c.V);
  }
  return ids;
}

template <class TY, class TW>
void check_forward(const Case& c, int64_t shift) {
  const auto ids = ids_of(c);
  const auto w = random_values<TW>(c.V * c.C, 1);
  std::vector<TY> y(static_cast<size_t>(c.n * c.C));
  kernels::cpu::embedding_forward(y.data(), w.data(), ids.data(), c.n, c.V, c.C, {});
  DeviceBuffer<TW> device_w(w, shift);
  DeviceBuffer<int32_t> device_ids(ids);
  DeviceBuffer<TY> device_y(c.n * c.C, shift);
  expect_same_bits(run_twice(device_y,
                             [&] {
                               kernels::cuda::embedding_forward(device_y.get(), device_w.get(),
                                                                device_ids.get(), c.n, c.V, c.C,
                                                                {});
                             }),
                   y);
}

TEST_F(EmbeddingGpu, Forward) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.n << " tokens, table " << c.V << " x " << c.C);
    for (const int64_t shift : {0, 1}) {
      check_forward<float, float>(c, shift);
      check_forward<bfloat16, bfloat16>(c, shift);
      check_forward<float, bfloat16>(c, shift);
    }
  }
}

template <class T>
void check_backward(const Case& c, bool add) {
  const auto ids = ids_of(c);
  const auto dy = random_values<T>(c.n * c.C, 1);
  const auto before = random_values<float>(c.V * c.C, 2);
  std::vector<float> dw = before;
  std::vector<uint8_t> scratch(static_cast<size_t>(
      kernels::cpu::embedding_backward_scratch(c.n, c.V, kernels::cpu::Stream{})));
  kernels::cpu::embedding_backward(dw.data(), dy.data(), ids.data(), c.n, c.V, c.C, add,
                                   scratch.data(), {});
  DeviceBuffer<T> device_dy(dy);
  DeviceBuffer<int32_t> device_ids(ids);
  DeviceBuffer<float> device_dw(c.V * c.C);
  DeviceBuffer<uint8_t> device_scratch(
      kernels::cuda::embedding_backward_scratch(c.n, c.V, kernels::cuda::Stream{}));
  expect_same_bits(run_twice(device_dw,
                             [&] {
                               if (add) device_dw.upload(before);
                               device_scratch.poison();
                               kernels::cuda::embedding_backward(device_dw.get(), device_dy.get(),
                                                                 device_ids.get(), c.n, c.V, c.C,
                                                                 add, device_scratch.get(), {});
                             }),
                   dw);
  device_scratch.expect_guards_intact();
}

TEST_F(EmbeddingGpu, Backward) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.n << " tokens, table " << c.V << " x " << c.C);
    for (const bool add : {false, true}) {
      check_backward<float>(c, add);
      check_backward<bfloat16>(c, add);
    }
  }
}

// On the GPU an id out of range cannot throw: its row is NaN, and its gradient goes nowhere.
TEST_F(EmbeddingGpu, IdsOutOfRange) {
  const int64_t V = 256, C = 3;
  const std::vector<int32_t> ids = {0, 256, -1, 255, 1 << 30, 0};
  const int64_t n = static_cast<int64_t>(ids.size());
  DeviceBuffer<int32_t> device_ids(ids);
  DeviceBuffer<float> w(std::vector<float>(static_cast<size_t>(V * C), 2.0f)), y(n * C), dw(V * C);
  DeviceBuffer<uint8_t> scratch(
      kernels::cuda::embedding_backward_scratch(n, V, kernels::cuda::Stream{}));
  kernels::cuda::embedding_forward(y.get(), w.get(), device_ids.get(), n, V, C, {});
  const auto rows = y.download();
  for (int64_t i = 0; i < n; ++i) {
    const bool valid = ids[static_cast<size_t>(i)] >= 0 && ids[static_cast<size_t>(i)] < V;
    for (int64_t c = 0; c < C; ++c) {
      const float value = rows[static_cast<size_t>(i * C + c)];
      EXPECT_TRUE(valid ? value == 2.0f : std::isnan(value)) << "token " << i;
    }
  }
  DeviceBuffer<float> dy(std::vector<float>(static_cast<size_t>(n * C), 1.0f));
  kernels::cuda::embedding_backward(dw.get(), dy.get(), device_ids.get(), n, V, C, false,
                                    scratch.get(), {});
  std::vector<float> expected(static_cast<size_t>(V * C), 0.0f);
  for (int64_t c = 0; c < C; ++c) {
    expected[static_cast<size_t>(c)] = 2.0f;
    expected[static_cast<size_t>(255 * C + c)] = 1.0f;
  }
  EXPECT_EQ(dw.download(), expected);
}

}  // namespace
}  // namespace quern::test
