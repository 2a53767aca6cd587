// A seeded mutator of byte strings.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace quern::fuzz {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // One to eight edits of `base`: bits, bytes, numbers, cuts, copies, words, pieces of `other`.
  // At most kMostBytes long. The same seed and calls give the same bytes.
  std::string mutate(const std::string& base, const std::string& other,
                     const std::vector<std::string>& words);
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  static constexpr size_t kMostBytes = 1 << 17;

 private:
  void edit(std::string& text, const std::string& other, const std::vector<std::string>& words);
  void replace_number(std::string& text);
  void write_binary_number(std::string& text);

  std::mt19937_64 random_;
};

}  // namespace quern::fuzz
