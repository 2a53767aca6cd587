// Every dispatch of attention and products takes the machine's fastest kernel or says why not.
#include "base/slow_path.h"

#include <gtest/gtest.h>

#include <utility>

#include "autograd/ops/attention.h"
#include "autograd/ops/fp8.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/view.h"
#include "autograd/tape.h"
#include "kernels/device_traits.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"

namespace quern {
namespace {

class SlowPathGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    if (!kernels::cuda::query_device_traits().hopper_code) GTEST_SKIP() << "no Hopper";
    forget_slow_paths();
  }
};

// The new notes of forward and backward of `op`.
template <class Op>
std::string said_of(Op&& op) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  const size_t before = slow_paths().size();
  backward(sum(op()));
  std::string said;
  const std::vector<std::string> all = slow_paths();
  for (size_t i = before; i < all.size(); ++i) said += all[i] + "\n";
  return said;
}

Variable leaf(const Shape& shape, DType dtype) {
  return Variable::leaf(normal(shape, 0.0, 1.0, dtype));
}

// Query heads, kv heads, batch and positions of 1 and more, on q, k, v apart and as one product.
TEST_F(SlowPathGpu, AnExtentOfOneIsNoReason) {
  for (const int64_t D : {16, 32, 64, 72, 112, 128, 200, 256}) {
    for (const int64_t B : {1, 2}) {
      for (const int64_t T : {1, 2, 130}) {
        for (const auto& [H, Hk] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}, {3, 1}}) {
          SCOPED_TRACE(cat("D ", D, ", B ", B, ", T ", T, ", H ", H, ", Hk ", Hk));
          const Shape q{B, T, H, D}, k{B, T, Hk, D}, qkv{B, T, (H + 2 * Hk) * D};
          EXPECT_EQ(said_of([&] {
                      return flash_attention(leaf(q, DType::bf16), leaf(k, DType::bf16),
                                             leaf(k, DType::bf16));
                    }),
                    "");
          EXPECT_EQ(said_of([&] { return qkv_attention(leaf(qkv, DType::bf16), H, Hk, D); }), "");
          if (D > 128) continue;  // the limit of FP32 heads on tensor cores
          EXPECT_EQ(said_of([&] { return qkv_attention(leaf(qkv, DType::f32), H, Hk, D); }), "");
        }
      }
    }
  }
}

TEST_F(SlowPathGpu, WideHeadsInFp32AreNamed) {
  const auto said = [](int64_t D) {
    return said_of([&] { return qkv_attention(leaf({1, 3, 3 * D}, DType::f32), 1, 1, D); });
  };
  const std::string what = "a slower kernel runs for flash attention's ";
  const std::string cores = ": tensor cores take FP32 heads of up to 128\n";
  EXPECT_EQ(said(136), what + "forward with head size 136" + cores + what +
                           "backward with head size 136" + cores);
  EXPECT_EQ(said(136), "");  // once
  EXPECT_EQ(said(96), "");
}

// Heads of a tensor with one column more than D.
TEST_F(SlowPathGpu, RowsOfAttentionThatAreNotAlignedAreNamed) {
  const auto said = [](int64_t D) {
    return said_of([&] {
      const Variable x = slice(leaf({1, 70, 2, D + 1}, DType::bf16), 3, 0, D);
      return flash_attention(x, x, x);
    });
  };
  const std::string what = "a slower kernel runs for flash attention's ";
  const std::string hopper =
      ": rows of q, k, v, the output or a gradient are not aligned to 16 bytes, as Hopper's own "
      "kernel needs\n";
  EXPECT_EQ(said(64), what + "forward with head size 64" + hopper + what +
                          "backward with head size 64" + hopper);
  const std::string singly = ": rows that are not aligned to 16 bytes are read singly\n";
  EXPECT_EQ(said(16), what + "forward with head size 16" + singly + what +
                          "backward with head size 16" + singly);
}

TEST_F(SlowPathGpu, RowsOfProductsThatAreNotAlignedAreNamed) {
  const auto said = [](int64_t n) {
    return said_of([&] {
      return matmul(leaf({512, 512}, DType::bf16), leaf({512, n}, DType::bf16));
    });
  };
  EXPECT_EQ(said(1024), "");
  EXPECT_EQ(
      said(1021),
      "a slower kernel runs for matrix products in bf16: rows of 1021 elements are no multiple "
      "of 16 bytes, as multiples of 8 are\n");
}

// The head pads its vocabulary.
TEST_F(SlowPathGpu, ALossOfAnOddVocabularyIsNone) {
  for (const int64_t vocab : {2045, 2047, 2048}) {
    EXPECT_EQ(said_of([&] {
                return lm_head_cross_entropy(leaf({64, 512}, DType::bf16),
                                             leaf({vocab, 512}, DType::bf16),
                                             zeros({64}, DType::i32), kIgnoreIndex, 32);
              }),
              "")
        << vocab;
  }
}

TEST_F(SlowPathGpu, Fp8ProductsThatArePaddedAreNamed) {
  const auto said = [](int64_t rows, int64_t out) {
    return said_of([&] {
      const Fp8Products products(true);
      return linear(leaf({rows, 512}, DType::bf16), leaf({out, 512}, DType::bf16));
    });
  };
  EXPECT_EQ(said(1024, 512), "");
  EXPECT_NE(said(1023, 512).find("FP8 products with 512 columns: 1023 x 512 results are computed "
                                 "padded and copied"),
            std::string::npos);
  EXPECT_NE(said(8192, 1021).find("quantizing to FP8: rows of 1021 elements"), std::string::npos);
}

}  // namespace
}  // namespace quern
