#include "base/slow_path.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TEST(SlowPath, EachIsSaidOnce) {
  forget_slow_paths();
  std::vector<std::string> said;
  handle_slow_paths([&](const std::string& text) {
    said.push_back(text);
    note_slow_path("an op of the handler", "it may note and ask");
    EXPECT_GE(slow_paths().size(), said.size());
  });
  note_slow_path("matmul", "rows of 3 elements");
  note_slow_path("matmul", "rows of 3 elements");
  note_slow_path("matmul", "rows of 5 elements");
  handle_slow_paths({});
  note_slow_path("softmax", "nobody listens");
  const std::vector<std::string> heard{
      "a slower kernel runs for matmul: rows of 3 elements",
      "a slower kernel runs for an op of the handler: it may note and ask"};
  EXPECT_EQ(said, heard);
  EXPECT_EQ(slow_paths().back(), "a slower kernel runs for softmax: nobody listens");
  forget_slow_paths();
  EXPECT_TRUE(slow_paths().empty());
}

}  // namespace
}  // namespace quern
