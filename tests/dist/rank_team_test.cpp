#include "dist/rank_team.h"

#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(RankTeam, CountsTheRanksOfThisMachine) {
  const auto texts = run_thread_ranks(3, {}, [](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    return cat(RankTeam(&group).count_here());
  });
  EXPECT_EQ(texts, std::vector<std::string>(3, "3"));
  EXPECT_EQ(RankTeam(nullptr).count_here(), 1);
}

}  // namespace
}  // namespace quern
