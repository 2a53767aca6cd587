#include "base/shell_word.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(ShellWord, ReadsAsOneWordEverywhere) {
  EXPECT_EQ(shell_word("runs/lr=1e-3,seed=1"), "runs/lr=1e-3,seed=1");
  EXPECT_EQ(shell_word("\xc3\xb6"), "\xc3\xb6");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  for (const std::string text : {"a b", "a|b", "$HOME", "a\\b", "'", "*", "~", "", "a;b", "\"",
                                 "\n", "#", "!a", "a\xc3\xb6"}) {
    EXPECT_EQ(run_shell("printf %s " + shell_word(text)).out, text);
  }
}

}  // namespace
}  // namespace quern
