// Ends the test program, with the name of the test, when one takes more than ten minutes: it hangs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace quern::testing_support {
namespace {

std::array<char, 256> name{};  // of the running test, for the signal handler

void end_program(int) {
  constexpr std::string_view kText = "\nhangs, longer than ten minutes: ";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  (void)!::write(STDERR_FILENO, name.data(), name.size());
  ::_exit(124);
}

class Watchdog : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    const std::string text = std::string(test.test_suite_name()) + "." + test.name() + "\n";
    name.fill(' ');
    std::copy_n(text.begin(), std::min(text.size(), name.size()), name.begin());
    ::signal(SIGALRM, end_program);
    ::alarm(600);
  }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }
};

[[maybe_unused]] const bool kWatching = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return true;
}();

}  // namespace
}  // namespace quern::testing_support
