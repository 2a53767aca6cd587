// Ends the test program, with the name of the test, when one takes more than QUERN_TEST_SECONDS: it
// hangs. Without that variable, which scripts/tally.sh sets, a test may take any time.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace quern::testing_support {
namespace {

std::array<char, 256> name{};  // of the running test, for the signal handler

void end_program(int) {
  constexpr std::string_view kText = "\ntakes longer than QUERN_TEST_SECONDS: ";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  (void)!::write(STDERR_FILENO, name.data(), name.size());
  ::_exit(124);
}

class Watchdog : public testing::EmptyTestEventListener {
 public:
  explicit Watchdog(unsigned seconds) : seconds_(seconds) {}

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    const std::string text = std::string(test.test_suite_name()) + "." + test.name() + "\n";
    name.fill(' ');
    std::copy_n(text.begin(), std::min(text.size(), name.size()), name.begin());
    ::signal(SIGALRM, end_program);
    ::alarm(seconds_);
  }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }

  unsigned seconds_;
};

[[maybe_unused]] const bool kWatching = [] {
  const char* const seconds = std::getenv("QUERN_TEST_SECONDS");
  if (seconds == nullptr) return false;
  testing::UnitTest::GetInstance()->listeners().Append(
      new Watchdog(static_cast<unsigned>(std::strtoul(seconds, nullptr, 10))));
  return true;
}();

}  // namespace
}  // namespace quern::testing_support
