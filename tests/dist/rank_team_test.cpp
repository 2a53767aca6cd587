#include "dist/rank_team.h"

#include <gtest/gtest.h>

#include "dist/silent_group.h"
#include "support/thread_ranks.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

// Whatever leaves a rank's work: the others learn of it, and the next collective is in step.
TEST(RankTeam, AnyExceptionReachesTheOtherRanks) {
  struct Stopped {};
  const auto texts = run_thread_ranks(3, {}, [](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    const RankTeam team(&group);
    std::string text;
    try {
      team.on_leader([]() -> void { throw Stopped(); }, "some work");
    } catch (const Stopped&) {
      text = "stopped";
    } catch (const CommunicationError& error) {
      text = error.what();
    }
    const auto after = team.on_each([&] { return cat(group.rank()); }, "what follows");
    return cat(text, "; ", after[0], after[1], after[2]);
  });
  EXPECT_EQ(texts[0], "stopped; 012");
  for (const size_t rank : {1u, 2u}) {
    EXPECT_TRUE(texts[rank].starts_with("rank 0 of 3 on ") &&
                texts[rank].ends_with(": some work: was ended; 012"))
        << texts[rank];
  }
}

// Its collectives fail as those on a GPU do: they return, and only check() tells.
class FailingGroup : public SilentGroup {
 public:
  FailingGroup() : SilentGroup(0, 2) {}
  void check() override { throw CommunicationError("rank 1 is gone"); }
};

TEST(RankTeam, TheResultOfAFailedCollectiveIsNotUsed) {
  Context context(kCpu);
  const ContextScope scope(context);
  FailingGroup group;
  try {
    RankTeam(&group).on_each([] { return std::string("a text"); }, "some work");
    FAIL() << "no error";
  } catch (const CommunicationError& error) {
    EXPECT_STREQ(error.what(), "rank 1 is gone");
  }
}

// "alike", or the error, of each rank with these texts.
std::vector<std::string> check(const std::vector<std::string>& texts) {
  return run_thread_ranks(static_cast<int>(texts.size()), {}, [&](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    const std::string& own = texts[static_cast<size_t>(group.rank())];
    RankTeam(&group).check_alike(own, "their texts");
    return std::string("alike");
  });
}

void expect_difference(const std::vector<std::string>& texts, const std::string& error) {
  EXPECT_EQ(check(texts), std::vector<std::string>(texts.size(), error));
}

TEST(RankTeam, EqualTextsAreAlike) {
  expect_difference({"a = 1\nb = 2\n"}, "alike");
  expect_difference({"a = 1\nb = 2\n", "a = 1\nb = 2\n", "a = 1\nb = 2\n"}, "alike");
  expect_difference({"", ""}, "alike");
}

TEST(RankTeam, EveryRankNamesTwoRanksAndTheFirstDifference) {
  expect_difference({"x", "x", "y"},
                    "ranks 0 and 2 differ in their texts: x on rank 0; y on rank 2");
  expect_difference({"a = 1\nb = 2\nc = 3\n", "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 5\nc = 4\n"},
                    "ranks 0 and 2 differ in their texts: line 2 is 'b = 2' on rank 0 and 'b = 5' "
                    "on rank 2");
  expect_difference({"a = 1\n", "a = 1\nb = 2\n", "x"},
                    "ranks 0 and 1 differ in their texts: line 2 is absent on rank 0 and 'b = 2' "
                    "on rank 1");
  expect_difference({"a\n", "a"},
                    "ranks 0 and 1 differ in their texts: the ends of their last lines differ");
}

// Lines that are not there differ from lines of the same text.
TEST(RankTeam, AbsentIsNoLine) {
  expect_difference({"a\nabsent", "a"},
                    "ranks 0 and 1 differ in their texts: line 2 is 'absent' on rank 0 and absent "
                    "on rank 1");
}

}  // namespace
}  // namespace quern
