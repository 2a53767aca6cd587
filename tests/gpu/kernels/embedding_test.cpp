// Embedding rows and their gradients. Rows, and gradients of up to 32 tokens, equal the CPU's bits,
// which sums in token order. Gradients of more tokens are compared with double.
#include "kernels/embedding.h"

#include <algorithm>
#include <string>

#include "gpu/reference.h"

namespace quern::test {
namespace {

class EmbeddingGpu : public GpuTest {};

enum class Ids { random, skewed, one, distinct };  // skewed: most tokens are one id

struct Case {
  int64_t n, V, C;
  Ids ids = Ids::random;
};

// Token counts below and above a piece of a sum (32) and a tile of the sort (4096); ids of one to
// three digits; widths with 16-byte accesses and without.
const Case kCases[] = {{0, 10, 8},
                       {1, 1, 1},
                       {31, 7, 33},
                       {33, 256, 64},
                       {100, 50, 72},
                       {1025, 256, 5},
                       {1025, 257, 130},
                       {2048, 10000, 264},
                       {4096, 65536, 8},
                       {5000, 50257, 16},
                       {4097, 200000, 3},
                       {4097, 300, 40},
                       {50000, 20000, 24},
                       {16384, 256, 384},
                       {9000, 300, 40, Ids::skewed},
                       {1, 9, 8, Ids::one},
                       {32, 9, 8, Ids::one},
                       {33, 9, 8, Ids::one},
                       {100, 9, 1032, Ids::one},
                       {2048, 9, 40, Ids::one},
                       {4097, 9, 7, Ids::one},
                       {50000, 9, 16, Ids::one},
                       {100, 100, 8, Ids::distinct},
                       {2048, 2100, 136, Ids::distinct},
                       {4097, 4097, 5, Ids::distinct},
                       {50000, 70000, 8, Ids::distinct}};

std::string name_of(const Case& c) {
  const char* const names[] = {"random", "skewed", "one", "distinct"};
  return std::to_string(c.n) + " tokens, " + names[static_cast<int>(c.ids)] + ", table " +
         std::to_string(c.V) + " x " + std::to_string(c.C);
}

std::vector<int32_t> ids_of(const Case& c) {
  std::mt19937 engine(7);
  std::vector<int32_t> ids(static_cast<size_t>(c.n));
  if (c.ids == Ids::distinct) {
    for (int64_t i = 0; i < c.n; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), engine);
    return ids;
  }
  for (int32_t& id : ids) {
    const bool frequent = c.ids == Ids::one || (c.ids == Ids::skewed && engine() % 8 != 0);
    id = static_cast<int32_t>(frequent ? c.V - 1 : static_cast<int64_t>(engine() % c.V));
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
    SCOPED_TRACE(name_of(c));
    for (const int64_t shift : {0, 1}) {
      check_forward<float, float>(c, shift);
      check_forward<bfloat16, bfloat16>(c, shift);
      check_forward<float, bfloat16>(c, shift);
    }
  }
}

// The gradient by the CPU in A, from the same values.
template <class A, class T>
std::vector<A> gradient_on_cpu(const Case& c, const std::vector<T>& dy,
                               const std::vector<int32_t>& ids, std::vector<A> dw, bool add) {
  std::vector<uint8_t> scratch(static_cast<size_t>(
      kernels::cpu::embedding_backward_scratch(c.n, c.V, c.C, kernels::cpu::Stream{})));
  kernels::cpu::embedding_backward(dw.data(), dy.data(), ids.data(), c.n, c.V, c.C, add,
                                   scratch.data(), {});
  return dw;
}

template <class T>
void check_backward(const Case& c, bool add, int64_t shift) {
  constexpr int64_t kPiece = 32;  // tokens of an id that are summed in order, then as one term
  const auto ids = ids_of(c);
  const auto dy = random_values<T>(c.n * c.C, 1);
  const auto before = random_values<float>(c.V * c.C, 2);
  DeviceBuffer<T> device_dy(dy, shift);
  DeviceBuffer<int32_t> device_ids(ids);
  DeviceBuffer<float> device_dw(c.V * c.C, shift);
  DeviceBuffer<uint8_t> device_scratch(
      kernels::cuda::embedding_backward_scratch(c.n, c.V, c.C, kernels::cuda::Stream{}));
  const auto actual = run_twice(device_dw, [&] {
    if (add) device_dw.upload(before);
    device_scratch.poison();
    kernels::cuda::embedding_backward(device_dw.get(), device_dy.get(), device_ids.get(), c.n, c.V,
                                      c.C, add, device_scratch.get(), {});
  });
  device_scratch.expect_guards_intact();

  const auto in_order = gradient_on_cpu(c, dy, ids, before, add);
  const auto exact = gradient_on_cpu(c, widen(dy), ids, widen(before), add);
  std::vector<int64_t> tokens(static_cast<size_t>(c.V), 0);
  for (const int32_t id : ids) ++tokens[static_cast<size_t>(id)];
  for (int64_t v = 0; v < c.V; ++v) {
    const int64_t count = tokens[static_cast<size_t>(v)];
    // Terms and the previous sum are at most 2, so no partial sum exceeds 2 (count + 1). An element
    // needs the additions of its piece and one addition a piece. Each rounds by at most 2^-24 of
    // the partial sum. This bound is far too wide for long sums: 50000 random terms reach about
    // 1000, and 1600 roundings of 2^-24 of that add up, as a random walk, to 2.4e-3, below 2^-8.
    // A lost term exceeds that.
    const auto additions = static_cast<double>(kPiece + 1 + count / kPiece);
    const double bound = 0x1p-24 * 2.0 * static_cast<double>(count + 1) * additions;
    for (int64_t e = v * c.C; e < (v + 1) * c.C; ++e) {
      const auto at = static_cast<size_t>(e);
      if (count <= kPiece) {
        ASSERT_EQ(std::memcmp(&actual[at], &in_order[at], sizeof(float)), 0)
            << "id " << v << " of " << count << " tokens: " << actual[at] << ", expected "
            << in_order[at];
      } else {
        ASSERT_NEAR(static_cast<double>(actual[at]), exact[at], std::min(bound, 0x1p-8))
            << "id " << v << " of " << count << " tokens";
      }
    }
  }
}

TEST_F(EmbeddingGpu, Backward) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c));
    for (const bool add : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        check_backward<float>(c, add, shift);
        check_backward<bfloat16>(c, add, shift);
      }
    }
  }
}

// A row's bits depend on its own tokens alone, not on where the sort puts them.
TEST_F(EmbeddingGpu, RowIsTheSameBesideOthers) {
  const int64_t V = 40, C = 8, tokens = 1000, kOthers = 37;
  const auto rows = random_values<float>(tokens * C, 3);
  std::vector<float> dw[2];
  for (const int64_t others : {int64_t{0}, kOthers}) {
    std::vector<int32_t> ids(static_cast<size_t>(others), 3);  // sort before the id 20
    ids.resize(static_cast<size_t>(others + tokens), 20);
    std::vector<float> dy(static_cast<size_t>(others * C), 1.0f);
    dy.insert(dy.end(), rows.begin(), rows.end());
    const int64_t n = others + tokens;
    DeviceBuffer<float> device_dy(dy), device_dw(V * C);
    DeviceBuffer<int32_t> device_ids(ids);
    DeviceBuffer<uint8_t> scratch(
        kernels::cuda::embedding_backward_scratch(n, V, C, kernels::cuda::Stream{}));
    kernels::cuda::embedding_backward(device_dw.get(), device_dy.get(), device_ids.get(), n, V, C,
                                      false, scratch.get(), {});
    const auto all = device_dw.download();
    dw[others == 0 ? 0 : 1].assign(all.begin() + 20 * C, all.begin() + 21 * C);
  }
  expect_same_bits(dw[1], dw[0]);
}

// On the GPU an id out of range cannot throw: its row is NaN, and its gradient is dropped.
TEST_F(EmbeddingGpu, IdsOutOfRange) {
  const int64_t V = 256, C = 3;
  const std::vector<int32_t> ids = {0, 256, -1, 255, 1 << 30, 0};
  const int64_t n = static_cast<int64_t>(ids.size());
  DeviceBuffer<int32_t> device_ids(ids);
  DeviceBuffer<float> w(std::vector<float>(static_cast<size_t>(V * C), 2.0f)), y(n * C), dw(V * C);
  DeviceBuffer<uint8_t> scratch(
      kernels::cuda::embedding_backward_scratch(n, V, C, kernels::cuda::Stream{}));
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
