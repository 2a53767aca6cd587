#include "io/cgroup.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

class Cgroup : public testing::Test {
 protected:
  void put(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder_ / file).parent_path());
    write_file(folder_ / file, text);
  }
  std::vector<CgroupMemory> found() const {
    return cgroup_memory(folder_ / "groups", folder_ / "own");
  }

  TemporaryFolder folder_;
};

TEST_F(Cgroup, TheLimitsOfTheGroupAndItsParents) {
  put("own", "0::/job/step\n");
  put("groups/job/memory.max", "3000000\n");
  put("groups/job/memory.swap.max", "0\n");
  put("groups/job/step/memory.max", "max\n");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].bytes, 3000000);
  EXPECT_EQ(found()[0].swap_bytes, 0);
  EXPECT_EQ(found()[0].file, folder_ / "groups/job/memory.max");
  put("groups/job/step/memory.max", "2000000\n");
  ASSERT_EQ(found().size(), 2u);
  EXPECT_EQ(found()[0].bytes, 2000000);
  EXPECT_FALSE(found()[0].swap_bytes);
  EXPECT_EQ(found()[1].bytes, 3000000);
}

TEST_F(Cgroup, TheRootsOwnLimitCounts) {
  put("own", "0::/\n");
  put("groups/memory.max", "5\n");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].bytes, 5);
}

TEST_F(Cgroup, VersionOne) {
  put("own", "12:cpu,cpuacct:/\n9:memory:/docker/x\n0::/y\n");
  put("groups/memory/docker/x/memory.limit_in_bytes", "4000000\n");
  put("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].bytes, 4000000);
}

TEST_F(Cgroup, NoneWithoutALimitOrAGroup) {
  EXPECT_TRUE(found().empty());
  put("own", "no group\n0::/a\n");
  EXPECT_TRUE(found().empty());
  put("groups/a/memory.max", "max\n");
  EXPECT_TRUE(found().empty());
  put("groups/a/memory.max", "lots");
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace quern
