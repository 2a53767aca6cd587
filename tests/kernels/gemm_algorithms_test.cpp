// The table of algorithms as text; needs no GPU.
#include "kernels/gemm_algorithms.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "support/malformed.h"

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
  const auto load = [](const std::filesystem::path& path) {
    GemmAlgorithms fresh("p");
    try {
      std::ifstream in(path);
      fresh.load(in);
    } catch (const Error& error) {
      EXPECT_EQ(fresh.size(), 0u);
      fail(cat(path.string(), ": ", error.what()));  // as use_gemm_table_file does
    }
  };
  const testing_support::TemporaryFolder folder;
  const std::string row = "19 whole and 8 hexadecimal numbers";
  testing_support::expect_malformed(
      folder / "gemm.txt",
      {{"empty", "", "text", "\"\"", "quern gemm algorithms 1"},
       {"nonsense", "nonsense", "text", "\"nonsense\"", "quern gemm algorithms 1"},
       {"a table alone", text.substr(0, text.find('\n') + 1) + "1 2\n", "line 2", "\"1 2\"",
        "m n k"},
       {"cut", text.substr(0, text.size() - 30), "line 3", "\"2 3 4 1", row},
       {"a short line", text + "1 2 3\n", "line 4", "\"1 2 3\"", row},
       {"a long line", text.substr(0, text.size() - 1) + " 5\n", "line 3", "\"2 3 4 1", row}},
      load);
}

}  // namespace
}  // namespace quern::kernels
