#include "dist/rank_team.h"

#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(RankTeam, CountsTheRanksWithTheSameText) {
  const auto texts = run_thread_ranks(3, {}, [](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    return cat(RankTeam(&group).count_equal(group.rank() == 1 ? "host b" : "host a", "hosts"));
  });
  EXPECT_EQ(texts, (std::vector<std::string>{"2", "1", "2"}));
  EXPECT_EQ(RankTeam(nullptr).count_equal("host a", "hosts"), 1);
}

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
    return cat(text, "; ", team.count_equal("", "what follows"));
  });
  EXPECT_EQ(texts[0], "stopped; 3");
  for (const size_t rank : {1u, 2u}) {
    EXPECT_TRUE(texts[rank].starts_with("rank 0 of 3 on ") &&
                texts[rank].ends_with(": some work: was ended; 3"))
        << texts[rank];
  }
}

}  // namespace
}  // namespace quern
