// The table of cuBLASLt algorithms by matrix product. It is filled when a product first occurs, and
// can be saved and loaded, so that a resumed run multiplies with the same algorithms and gives the
// same bits.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace quern::kernels {

// The inputs to the choice of an algorithm: the product (see Gemm), types (DType values) and the
// alignment of its operands in bytes, and the workspace.
struct GemmProblem {
  // Added to `math` where the product has a bias, and where A's or B's blocks of scales are tiles.
  // (A column would make saved tables unreadable.)
  static constexpr int64_t kBiased = 256, kTilesInA = 512, kTilesInB = 1024;
  // The input_type of FP8 products (scaled_gemm.h), which no DType names.
  static constexpr int64_t kFp8 = 64;
  int64_t m = 0, n = 0, k = 0, batch = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;
  int64_t transpose_a = 0, transpose_b = 0, math = 0;
  int64_t input_type = 0, output_type = 0;
  int64_t align_a = 0, align_b = 0, align_d = 0;
  int64_t workspace_bytes = 0;

  friend auto operator<=>(const GemmProblem&, const GemmProblem&) = default;
};

using GemmAlgorithm = std::array<uint64_t, 8>;  // the bits of a cublasLtMatmulAlgo_t

// Result of tuning one product. Microseconds a product; 0: not known.
struct GemmMeasurement {
  GemmProblem problem;
  GemmAlgorithm chosen;
  double favourite_us = 0.0;  // the library's own choice
  double before_us = 0.0;     // the algorithm used until now
  double chosen_us = 0.0;
  int64_t candidates = 0;
  bool sustained = false;  // timed under sustained load, else alone
};

class GemmAlgorithms {
 public:
  // `platform` names GPU and library (one line); an algorithm's bits mean nothing on another.
  explicit GemmAlgorithms(std::string platform) : platform_(std::move(platform)) {}

  const GemmAlgorithm* find(const GemmProblem& problem) const;  // nullptr when not met yet
  void insert(const GemmProblem& problem, const GemmAlgorithm& algorithm);
  size_t size() const { return table_.size(); }
  const std::map<GemmProblem, GemmAlgorithm>& entries() const { return table_; }

  // From now on, a product that the table lacks is timed with every algorithm that the library
  // proposes, on the operands at hand; D is meaningless afterwards. Without measuring, the
  // library's first proposal is taken. Empties the table; `before` finds its old entries.
  void start_measuring();
  bool measuring() const { return measuring_; }
  const GemmAlgorithm* before(const GemmProblem& problem) const;  // nullptr: not met before
  std::vector<GemmMeasurement> measurements;                      // in the order of first use

  // Text: two lines of header, then a line a product.
  void save(std::ostream& out) const;
  // Adds the saved entries, which win over present ones. Returns false, changing nothing, when they
  // were saved on another platform; throws when the text is not such a table.
  bool load(std::istream& in);

 private:
  std::string platform_;
  std::map<GemmProblem, GemmAlgorithm> table_, before_;
  bool measuring_ = false;
};

}  // namespace quern::kernels
