#include "kernels/gemm_algorithms.h"

#include <istream>
#include <ostream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace quern::kernels {

namespace {

constexpr const char* kMagic = "quern gemm algorithms 1; ";
constexpr const char* kColumns =
    "m n k batch lda ldb ldd stride_a stride_b stride_d transpose_a transpose_b math input_type "
    "output_type align_a align_b align_d workspace_bytes algorithm(8 hexadecimal words)";

// The columns of a line, in the order of kColumns. Works on const and mutable problems.
template <class Problem>
auto fields(Problem& p) {
  return std::array{&p.m,           &p.n,           &p.k,        &p.batch,          &p.lda,
                    &p.ldb,         &p.ldd,         &p.stride_a, &p.stride_b,       &p.stride_d,
                    &p.transpose_a, &p.transpose_b, &p.math,     &p.input_type,     &p.output_type,
                    &p.align_a,     &p.align_b,     &p.align_d,  &p.workspace_bytes};
}

}  // namespace

const GemmAlgorithm* GemmAlgorithms::find(const GemmProblem& problem) const {
  const auto found = table_.find(problem);
  return found == table_.end() ? nullptr : &found->second;
}

const GemmAlgorithm* GemmAlgorithms::before(const GemmProblem& problem) const {
  const auto found = before_.find(problem);
  return found == before_.end() ? nullptr : &found->second;
}

void GemmAlgorithms::start_measuring() {
  before_ = std::exchange(table_, {});
  measuring_ = true;
}

void GemmAlgorithms::insert(const GemmProblem& problem, const GemmAlgorithm& algorithm) {
  table_.insert_or_assign(problem, algorithm);
}

void GemmAlgorithms::save(std::ostream& out) const {
  out << kMagic << platform_ << '\n' << kColumns << '\n';
  for (const auto& [problem, algorithm] : table_) {
    for (const int64_t* field : fields(problem)) out << *field << ' ';
    out << std::hex;
    for (const uint64_t word : algorithm) out << ' ' << word;
    out << std::dec << '\n';
  }
}

bool GemmAlgorithms::load(std::istream& in) {
  std::string line;
  std::getline(in, line);
  QUERN_CHECK(line.starts_with(kMagic), "gemm algorithms: the text starts with \"",
              line.substr(0, 40), "\", expected \"", kMagic, "\"");
  if (line.substr(std::char_traits<char>::length(kMagic)) != platform_) return false;
  std::getline(in, line);
  QUERN_CHECK(line == kColumns, "gemm algorithms: line 2 is \"", line.substr(0, 40),
              "\", expected the columns \"", kColumns, "\"");
  std::map<GemmProblem, GemmAlgorithm> loaded;
  for (int number = 3; std::getline(in, line); ++number) {
    GemmProblem problem;
    GemmAlgorithm algorithm;
    std::istringstream words(line);
    for (int64_t* field : fields(problem)) words >> *field;
    words >> std::hex;
    for (uint64_t& word : algorithm) words >> word;
    QUERN_CHECK(!words.fail() && (words >> std::ws).eof(), "gemm algorithms: line ", number,
                " is \"", line.substr(0, 200), "\", expected ", fields(problem).size(),
                " whole and ", algorithm.size(), " hexadecimal numbers");
    loaded.emplace(problem, algorithm);
  }
  table_.swap(loaded);
  table_.merge(loaded);  // adds the entries that the text lacks
  return true;
}

}  // namespace quern::kernels
