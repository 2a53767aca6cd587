#include "run/nonfinite.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "run/weights.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Nonfinite : public testing::Test {
 protected:
  // The finder's answer about a step on `x`, with the module's name around it.
  std::string find(const Tensor& x, double scale_by = 1.0) {
    return find_nonfinite(arena_, [&] {
      const Variable y = net_("layer", x);
      const RangeScope range("then");
      backward(sum(scale(y, scale_by)));
    });
  }

  Linear net_{3, 2, Init::normal(1.0)};
  ParameterArena arena_{net_, {}};
};

TEST_F(Nonfinite, NothingIsFound) {
  EXPECT_TRUE(all_finite(zeros({0})));
  EXPECT_EQ(find(ones({4, 3})), "");
}

TEST_F(Nonfinite, NamesAWeight) {
  arena_.values().data<float>()[1] = std::nanf("");
  EXPECT_EQ(find(ones({4, 3})), "weight weight");
}

TEST_F(Nonfinite, NamesTheFirstOutputAndItsModules) {
  EXPECT_EQ(find(full({4, 3}, kInfinity)), "layer: output of linear");
  EXPECT_EQ(find(ones({4, 3}), kInfinity), "then: output of scale");
  EXPECT_EQ(find_nonfinite(arena_, [] { exp(full({2}, kInfinity)); }), "output of exp");
  EXPECT_EQ(find_nonfinite(arena_,
                           [] {
                             const RangeScope outer("a"), inner("b");
                             record("ids", zeros({2}, DType::i32), {}, nullptr);
                             exp(full({2}, kInfinity));
                           }),
            "a.b: output of exp");
}

TEST_F(Nonfinite, NamesAGradient) {
  const std::string found = find_nonfinite(arena_, [&] {
    const Variable y = net_.forward(ones({4, 3}));
    backward(y, full(y.shape(), kInfinity));
  });
  EXPECT_EQ(found, "gradient of weight");
}

TEST_F(Nonfinite, AStepThatThrowsLeavesNothingAttached) {
  EXPECT_THROW(find_nonfinite(arena_, [] { fail("no step"); }), Error);
  EXPECT_EQ(Context::current().observer<OutputObserver>(), nullptr);
  EXPECT_FALSE(arena_.parameters()[0]->leaf()->on_ready);
}

TEST_F(Nonfinite, PaddingHasNoEffect) {
  const std::vector<NamedSlice> slices = arena_.named_slices();
  OptimizerBuffer buffer{"moment1.", zeros({1000}), slices};
  buffer.data.data<float>()[999] = std::nanf("");
  EXPECT_EQ(find_nonfinite(buffer), "");
  buffer.data.data<float>()[3] = std::nanf("");
  EXPECT_EQ(find_nonfinite(buffer), "tensor 'moment1.weight' holds nan at element 3");
}

// BF16 is searched piece by piece; the last piece is short.
TEST_F(Nonfinite, ALargeBufferInBf16IsSearchedToItsEnd) {
  constexpr int64_t kSize = (2 << 22) + 1000;
  const Tensor data = zeros({kSize}).to(DType::bf16);
  EXPECT_TRUE(all_finite(data));
  for (const int64_t place : {int64_t{0}, int64_t{1} << 22, kSize - 1}) {
    data.data<bfloat16>()[place] = bfloat16(INFINITY);
    EXPECT_EQ(find_nonfinite({"moment1.", data, {{"all", {kSize}, 0}}}),
              cat("tensor 'moment1.all' holds inf at element ", place));
    data.data<bfloat16>()[place] = bfloat16(0.0f);
  }
}

TEST_F(Nonfinite, ARanksShareIsNamedByParameter) {
  const std::vector<NamedSlice> slices{{"first", {2}, 0}, {"second", {4}, 4}};
  Placement share;
  share.append(0, 2);
  share.append(6, 8);
  const Tensor data = from_vector<float>({1.0f, 2.0f, 3.0f, std::nanf("")}, {4});
  EXPECT_EQ(find_nonfinite({"moment1.", data, slices, share}),
            "tensor 'moment1.second' holds nan at element 3");
  // A rank of which the share is empty has zeros.
  const Tensor none = spread({"moment1.", zeros({0}), slices, Placement()}, slices[1]);
  EXPECT_EQ(none.to_vector<float>(), std::vector<float>(4, 0.0f));
}

}  // namespace
}  // namespace quern
