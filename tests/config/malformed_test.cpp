// Malformed configuration files.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "config/config_parse.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Malformed, Toml) {
  const TemporaryFolder folder;
  const std::string count = "an integer from 1 to 1048576";
  expect_malformed(
      folder / "config.toml",
      {{"no value", "[train]\nbatch =\n", ":2:", "saw '\\n'", "expected value"},
       {"no equals sign", "[train]\nbatch 4\n", ":2:", "saw '4'", "expected '='"},
       {"an open text", "[data]\ntrain = \"x\n", ":2:", "control characters", "valid TOML"},
       {"an open section", "[train\nbatch = 4\n", ":1:", "saw '\\n'", "expected ']'"},
       {"cut", "[optim", ":1:", "end-of-file", "table header"},
       {"three brackets", "[[[train]]]\n", ":1:", "saw '['", "bare key starting character"},
       {"a key twice", "[train]\nbatch = 4\nbatch = 5\n", ":3:", "'batch'", "cannot redefine"},
       {"a section twice", "[train]\n[train]\n", ":2:", "'train'", "cannot redefine"},
       {"Latin-1", "[data]\ntrain = \"\xff\"\n", ":2:", "invalid utf-8", "valid TOML"},
       {"curly quotes", "[data]\ntrain = \u201cx\u201d\n", ":2:", "saw '\u201c'",
        "in straight quotes"},
       {"a bare word beyond ASCII",
        "# \u00e9\n[data]\ntrain = \"\"\"\u00e9\\\"\n\"\"\"\"\"\nt\u00e9 = 1\n",
        ":5:", "saw '\u00e9'", "in straight quotes"},
       {"a bare word after a literal", "[data]\ntrain = '\u00e9\\' \u00e9\n", ":2:", "saw '\u00e9'",
        "in straight quotes"},
       {"a zero byte", std::string("[train]\nbatch = 4\0\n", 19), ":2:", "\\u0000", "digit"},
       {"too many digits", "[train]\nsteps = 99999999999999999999\n",
        ":2:", "'99999999999999999999'", "64 bits"},
       {"deep lists", cat("a = ", std::string(100'000, '[')), ":1:", "nested", "depth of 256"},
       {"an unknown section", "[trian]\nbatch = 4\n", ":1:", "[trian]", "did you mean train?"},
       {"an unknown key", "[train]\nbatchsize = 4\n", ":2:", "batchsize", "did you mean batch?"},
       {"another section's key", "[model]\nbatch = 4\n", ":2:", "batch in [model]", "in [train]"},
       {"a key above the sections", "batch = 4\n", ":1:", "batch at the top", "in [train]"},
       {"a section as a value", "train = 4\n", ":1:", "train is a value", "a section [train]"},
       {"text as a number", "[train]\nbatch = \"four\"\n", ":2: batch", "\"four\"", count},
       {"a fraction", "[train]\nbatch = 4.5\n", ":2: batch", "is 4.5", count},
       {"a list", "[train]\nbatch = [4]\n", ":2: batch", "an array", count},
       {"a negative number", "[train]\nbatch = -4\n", ":2: batch", "is -4", count},
       {"no number", "[optimizer]\nlr = nan\n", ":2: lr", "is nan,", "a number from 0 to 1000"},
       {"a width that no head divides", "[model]\nd_model = 64\nheads = 3\n", "d_model", "is 64",
        "a multiple of heads (3)"}},
      [](const auto& path) { load_config(path.string()); });
}

}  // namespace
}  // namespace quern
