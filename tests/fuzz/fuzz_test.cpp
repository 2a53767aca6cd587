#include "fuzz/fuzz_targets.h"

#include <gtest/gtest.h>

#include <set>

#include "fuzz/mutator.h"
#include "support/files.h"

namespace quern::fuzz {
namespace {

using namespace testing_support;

// Inputs of each target here; quern_fuzz runs as many as one likes (docs/reliability.md).
constexpr int kMutants = 400;

TEST(Fuzz, SeedsAreAccepted) {
  const TemporaryFolder scratch;
  for (const FuzzTarget& target : fuzz_targets(scratch.path())) {
    for (const std::string& seed : target.seeds) {
      std::string refusal;
      EXPECT_EQ(run_target(target, seed, &refusal), Outcome::accepted)
          << target.name << ": " << refusal;
    }
  }
}

TEST(Fuzz, PastFindingsAreRefusedOrAccepted) {
  const TemporaryFolder scratch;
  std::set<std::string> replayed;
  for (const FuzzTarget& target : fuzz_targets(scratch.path())) {
    for (const std::string& input : past_findings(target)) {
      EXPECT_NO_THROW(run_target(target, input)) << target.name << ": " << input;
      replayed.insert(target.name);
    }
  }
  std::set<std::string> folders;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_folder() / "tests/fixtures/fuzz")) {
    folders.insert(entry.path().filename().string());
  }
  EXPECT_EQ(replayed, folders) << "a folder that names no target";
  EXPECT_GE(replayed.size(), 6u);
}

TEST(Fuzz, MutantsBreakNoPromise) {
  const TemporaryFolder scratch;
  for (const FuzzTarget& target : fuzz_targets(scratch.path())) {
    Mutator mutator(7);
    for (int i = 0; i < kMutants; ++i) {
      const auto seed = [&] { return target.seeds[mutator.below(target.seeds.size())]; };
      const std::string input = mutator.mutate(seed(), seed(), target.words);
      try {
        run_target(target, input);
      } catch (const std::exception& error) {
        ADD_FAILURE() << target.name << ", mutant " << i << ": " << error.what();
        break;
      }
    }
  }
}

TEST(Fuzz, ABrokenPromiseIsSeen) {
  const FuzzTarget raw{"raw", {}, {}, [](const std::string&) { fail("[json.exception.x] y"); }};
  EXPECT_THROW(run_target(raw, ""), std::logic_error);
  const FuzzTarget other{"other", {}, {}, [](const std::string&) { throw std::bad_alloc(); }};
  EXPECT_THROW(run_target(other, ""), std::bad_alloc);
}

TEST(Fuzz, MemoryBeyondTheInputsSizeIsSeen) {
  const std::string input(1 << 20, 'x');
  const auto most = static_cast<size_t>(kMemoryBase + kMemoryFactor * std::ssize(input));
  size_t bytes = 0;
  bool hides_it = false;
  const FuzzTarget target{"memory", {}, {}, [&](const std::string&) {
                            try {
                              const std::string half(bytes / 2, 'a'), rest(bytes / 2, 'b');
                            } catch (const std::bad_alloc&) {
                              if (hides_it) fail("a message");
                              throw;
                            }
                          }};
  bytes = most - 65536;  // malloc rounds up
  EXPECT_EQ(run_target(target, input), Outcome::accepted);
  EXPECT_EQ(run_target(target, input), Outcome::accepted) << "released memory does not count";
  bytes = most + 4096;
  EXPECT_THROW(run_target(target, input), std::logic_error);
  hides_it = true;
  EXPECT_THROW(run_target(target, input), std::logic_error);
}

}  // namespace
}  // namespace quern::fuzz
