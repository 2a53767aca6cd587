// The table of algorithms as text; needs no GPU.
#include "kernels/cuda/gemm/gemm_algorithms.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"

namespace quern::kernels {
namespace {

GemmProblem problem(int64_t m) {
  GemmProblem p;
  p.m = m, p.n = 3, p.k = 4, p.batch = 1, p.lda = 4, p.ldb = 3, p.ldd = 3;
  p.align_a = 256, p.align_b = 2, p.align_d = 16, p.workspace_bytes = int64_t{1} << 40;
  return p;
}
constexpr GemmAlgorithm kFirst = {1, 0xffffffffffffffff, 3, 0, 5, 6, 7, 0x123456789abcdef};
constexpr GemmAlgorithm kSecond = {9, 9, 9, 9, 9, 9, 9, 9};

TEST(GemmAlgorithms, SavedAndLoaded) {
  GemmAlgorithms table("GPU, cuBLASLt 1");
  table.insert(problem(2), kFirst);
  table.insert(problem(7), kSecond);
  EXPECT_EQ(table.find(problem(3)), nullptr);
  std::stringstream text;
  table.save(text);

  GemmAlgorithms other("GPU, cuBLASLt 1");
  other.insert(problem(2), kSecond);   // the saved one wins
  other.insert(problem(11), kSecond);  // stays
  EXPECT_TRUE(other.load(text));
  EXPECT_EQ(other.size(), 3u);
  ASSERT_NE(other.find(problem(2)), nullptr);
  EXPECT_EQ(*other.find(problem(2)), kFirst);
  EXPECT_EQ(*other.find(problem(7)), kSecond);
}

TEST(GemmAlgorithms, KeyHoldsEveryField) {
  GemmAlgorithms table("p");
  table.insert(problem(2), kFirst);
  GemmProblem other = problem(2);
  other.align_b = 4;
  EXPECT_EQ(table.find(other), nullptr);
}

TEST(GemmAlgorithms, AnotherPlatformIsRefused) {
  GemmAlgorithms table("GPU, cuBLASLt 1"), other("GPU, cuBLASLt 2");
  table.insert(problem(2), kFirst);
  std::stringstream text;
  table.save(text);
  EXPECT_FALSE(other.load(text));
  EXPECT_EQ(other.size(), 0u);
}

TEST(GemmAlgorithms, MalformedTextThrows) {
  GemmAlgorithms table("p");
  table.insert(problem(2), kFirst);
  std::stringstream saved;
  table.save(saved);
  const std::string text = saved.str();
  for (const std::string& bad : {std::string("nonsense"), text.substr(0, text.size() - 30),
                                 text + "1 2 3\n", text.substr(0, text.size() - 1) + " 5\n"}) {
    std::stringstream in(bad);
    GemmAlgorithms fresh("p");
    EXPECT_THROW(fresh.load(in), Error) << bad;
    EXPECT_EQ(fresh.size(), 0u);
  }
}

}  // namespace
}  // namespace quern::kernels
