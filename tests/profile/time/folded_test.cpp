#include "profile/time/folded.h"

#include <gtest/gtest.h>

#include <sstream>

#include "profile/time/made_profile.h"

namespace quern {
namespace {

using namespace testing_support;

std::string cpu_stacks(const Profile& profile) {
  std::ostringstream out;
  write_cpu_stacks(profile, out);
  return out.str();
}

std::string gpu_stacks(const Profile& profile) {
  std::ostringstream out;
  write_gpu_stacks(profile, out);
  return out.str();
}

TEST(FoldedStacks, OfTheCpuAreSelfTimesOfAllSteps) {
  EXPECT_EQ(cpu_stacks(two_steps()),
            "backward 420\n"
            "backward;model;layers;0;linear backward 100\n"
            "backward;model;layers;0;linear backward;cast backward 80\n"
            "forward 40\n"
            "forward;model;layers;0 420\n"
            "forward;model;layers;0;linear 200\n"
            "forward;model;layers;0;rope_attention 140\n"
            "optimizer 200\n");
}

TEST(FoldedStacks, OfTheGpuEndInKernels) {
  EXPECT_EQ(gpu_stacks(two_steps()),
            "(unknown);copy device to host 40\n"
            "backward;model;layers;0;linear backward;cast backward;forward_kernel<float> 100\n"
            "backward;model;layers;0;linear backward;nvjet_tst_128x64_TNT 400\n"
            "forward;model;layers;0;linear;nvjet_tst_128x64_TNT 400\n"
            "forward;model;layers;0;rope_attention;hopper_attention_forward_kernel<128, true> 200\n"
            "optimizer;adamw_kernel 200\n");
}

TEST(FoldedStacks, OfACapturedGraphKnowTheirOps) {
  EXPECT_EQ(cpu_stacks(captured_steps()), "");
  EXPECT_EQ(gpu_stacks(captured_steps()),
            "forward;add;add_kernel 60\n"
            "forward;lm_head;linear;nvjet_tst_128x64_TNT 80\n");
}

TEST(FoldedStacks, OfEventsEndInOps) {
  EXPECT_EQ(gpu_stacks(event_times()), "forward;linear 40\nforward;linear;cast 10\n");
}

TEST(FoldedStacks, KeepTheirSeparatorsToThemselves) {
  ProfileMaker made;
  made.range(RangeKind::op, "a;b\nc", 0, 10, -1, "");
  EXPECT_EQ(cpu_stacks(made.profile), "(no phase);a,b c 10\n");
}

// Times are rounded to microseconds; stacks of 0 us are left out.
TEST(FoldedStacks, AreWholeMicroseconds) {
  Profile profile;
  for (const auto& [name, ns] : {std::pair{"a", 1499}, {"b", 1500}, {"c", 499}}) {
    profile.ranges.push_back({RangeKind::op, false, profile.names.id(name), 0, 0, 0, -1, 0, ns});
  }
  EXPECT_EQ(cpu_stacks(profile), "(no phase);a 1\n(no phase);b 2\n");
}

}  // namespace
}  // namespace quern
