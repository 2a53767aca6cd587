#include "dist/agreement.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "support/thread_ranks.h"

namespace quern {
namespace {

using namespace testing_support;
using Texts = std::vector<std::string>;

// "agreed", or the error, of each rank with these configurations.
Texts check(const Texts& configurations) {
  const TemporaryFolder folder;
  const int size = static_cast<int>(configurations.size());
  return run_thread_ranks(size, {}, [&](Communicator& ranks) {
    const auto store = open_store({"file:" + folder.path().string(), ranks.rank(), size});
    check_agreement(ranks, *store, "build", "1.0");
    check_agreement(ranks, *store, "configuration",
                    configurations[static_cast<size_t>(ranks.rank())]);
    return std::string("agreed");
  });
}

TEST(AgreementTest, EqualTextsAgree) {
  EXPECT_EQ(check({"a = 1\nb = 2\n"}), Texts{"agreed"});
  EXPECT_EQ(check({"a = 1\nb = 2\n", "a = 1\nb = 2\n", "a = 1\nb = 2\n"}), Texts(3, "agreed"));
  EXPECT_EQ(check({"", ""}), Texts(2, "agreed"));
}

TEST(AgreementTest, EveryRankNamesTwoRanksAndTheFirstLine) {
  EXPECT_EQ(check({"a = 1\nb = 2\nc = 3\n", "a = 1\nb = 2\nc = 3\n", "a = 1\nb = 5\nc = 4\n"}),
            Texts(3,
                  "ranks 0 and 2 differ in their configuration: line 2 is 'b = 2' on rank 0 and "
                  "'b = 5' on rank 2"));
  EXPECT_EQ(check({"a = 1\n", "a = 1\nb = 2\n", "x"}),
            Texts(3,
                  "ranks 0 and 1 differ in their configuration: line 2 is absent on rank 0 and "
                  "'b = 2' on rank 1"));
  EXPECT_EQ(check({"a", ""}), Texts(2,
                                    "ranks 0 and 1 differ in their configuration: line 1 is 'a' on "
                                    "rank 0 and absent on rank 1"));
  EXPECT_EQ(check({"a\n", "a"}), Texts(2,
                                       "ranks 0 and 1 differ in their configuration: the ends of "
                                       "their last lines differ"));
}

// Lines that are not there differ from lines of the same text.
TEST(AgreementTest, AbsentIsNoLine) {
  EXPECT_EQ(check({"a\nabsent", "a"}),
            Texts(2,
                  "ranks 0 and 1 differ in their configuration: line 2 is 'absent' on rank 0 and "
                  "absent on rank 1"));
}

}  // namespace
}  // namespace quern
