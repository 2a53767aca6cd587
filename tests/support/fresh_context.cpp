// Each test begins with a Context of its own: its random inputs do not depend on which tests ran
// before it, so that a failure repeats when the test runs alone. --gtest_random_seed=N gives
// others.
#include <gtest/gtest.h>

#include <optional>

#include "tensor/context.h"

namespace quern::testing_support {
namespace {

class FreshContext : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    context_.emplace(kCpu, static_cast<uint64_t>(testing::GTEST_FLAG(random_seed)));
    scope_.emplace(*context_);
  }
  void OnTestEnd(const testing::TestInfo&) override {
    scope_.reset();
    context_.reset();
  }

  std::optional<Context> context_;
  std::optional<ContextScope> scope_;
};

[[maybe_unused]] const bool kListening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new FreshContext);
  return true;
}();

}  // namespace
}  // namespace quern::testing_support
