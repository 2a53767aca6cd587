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

}  // namespace
}  // namespace quern
