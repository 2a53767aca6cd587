// The parsers of input from outside, one target each, for quern_fuzz and its test.
//
// The promise that every target holds: whatever the bytes, a parser returns or throws a
// quern::Error whose message is not a raw library text. It does not crash, hang, or have more than
// kMemoryBase + kMemoryFactor * the input's size in use by operator new.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace quern::fuzz {

struct FuzzTarget {
  std::string name;
  std::vector<std::string> seeds;  // valid inputs: mutants of these reach the deep checks
  std::vector<std::string> words;  // of the format, which a mutant may insert
  std::function<void(const std::string& input)> parse;
};

// Targets that read a file write the input below `scratch`, an existing folder.
std::vector<FuzzTarget> fuzz_targets(const std::filesystem::path& scratch);

// The inputs of past findings of a target: tests/fixtures/fuzz/NAME. Empty without the sources.
std::vector<std::string> past_findings(const FuzzTarget& target);

// JSON takes up to 50 bytes for a byte of text; blocks of readers and a checkpoint's tensors need
// the rest.
inline constexpr int64_t kMemoryBase = int64_t{64} << 20, kMemoryFactor = 64;

enum class Outcome { accepted, refused };

// Parses `input`. Throws std::logic_error on a broken promise that shows as an exception: another
// type than quern::Error, a message or memory as above. Crashes and hangs are the caller's to
// catch. `refusal`: receives the error's text of a refused input.
Outcome run_target(const FuzzTarget& target, const std::string& input,
                   std::string* refusal = nullptr);

}  // namespace quern::fuzz
