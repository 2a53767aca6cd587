// Keys of a --config file are not flags: the file may be that of the run's own training.
#include "config/config_print.h"
#include "support/program.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Args = std::vector<std::string>;

TEST(ConfigFileProgram, ARunTakesItsOwnFile) {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt", tiny = folder / "tiny.toml", path = folder / "run",
                    prompts = write_file(folder / "prompts.txt", "The\n");
  write_corpus(text, 20000);
  save_config(tiny_config(text, ""), tiny);
  ASSERT_EQ(run({"train", "--config", tiny, "--out", folder / "base", "--steps", "1"}).code, 0);
  ASSERT_EQ(
      run({"train", "--config", tiny, "--out", path, "--steps", "1", "--from", folder / "base"})
          .code,
      0);
  for (Args args : {Args{"generate", path, "--tokens", "2", "--prompts", prompts},
                    Args{"generate", path, "--tokens", "2", "--prompt_ids", "1,2"},
                    Args{"eval", path, text}, Args{"train", "--resume", path, "--steps", "2"}}) {
    args.insert(args.end(), {"--config", folder / "run/config.toml"});
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << args[0] << ": " << outcome.err;
  }
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_00000002"));
  expect_usage_error({"generate", path, "--prompts", prompts, "--prompt", "The"},
                     "expected one of --prompt, --prompts and --prompt_ids");
}

}  // namespace
}  // namespace quern
