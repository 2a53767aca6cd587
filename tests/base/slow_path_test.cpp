#include "base/slow_path.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TEST(SlowPath, EachIsSaidOnce) {
  std::vector<std::string> said;
  note_slow_path("a test's op", "before the handler");
  handle_slow_paths([&](const std::string& text) { said.push_back(text); });
  note_slow_path("a test's op", "rows of 3 elements");
  note_slow_path("a test's op", "rows of 3 elements");
  note_slow_path("a test's op", "before the handler");
  note_slow_path("a test's op", "rows of 5 elements");
  handle_slow_paths({});
  note_slow_path("a test's op", "after the handler");
  const std::string what = "a slower kernel runs for a test's op: ";
  EXPECT_EQ(said,
            (std::vector<std::string>{what + "before the handler", what + "rows of 3 elements",
                                      what + "rows of 5 elements"}));
  EXPECT_EQ(slow_paths().back(), what + "after the handler");
}

}  // namespace
}  // namespace quern
