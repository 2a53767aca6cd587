// `quern generate`: its prompts.
#include <nlohmann/json.hpp>

#include "config/config_print.h"
#include "support/program.h"
#include "support/training.h"

namespace quern {
namespace {

using namespace testing_support;

class GenerateProgram : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 20000);
    save_config(tiny_config(folder_ / "text.txt", ""), folder_ / "tiny.toml");
    ASSERT_EQ(
        run({"train", "--config", folder_ / "tiny.toml", "--out", path_, "--steps", "1"}).code, 0);
  }
  Outcome generate(const std::string& prompts) const {
    const std::string file = write_file(folder_ / "prompts.txt", prompts);
    return run({"generate", path_, "--prompts", file, "--tokens", "1", "--json"});
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "run";
};

TEST_F(GenerateProgram, AByteOrderMarkIsNoPartOfAPrompt) {
  const Outcome outcome = generate(
      "\xEF\xBB\xBF"
      "caf\u00e9\n");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("prompt"), "caf\u00e9");
}

TEST_F(GenerateProgram, ALineOfJsonHasTokensAndTheReasonOfTheEnd) {
  const auto line_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"generate", path_, "--prompt", "the ", "--json"};
    args.insert(args.end(), {"--temperature", "0", "--tokens", "3"});
    args.insert(args.end(), more.begin(), more.end());
    return nlohmann::json::parse(run(args).out);
  };
  const auto whole = line_of({});
  EXPECT_EQ(whole.at("prompt"), "the ");
  EXPECT_EQ(whole.at("prompt_tokens"), (std::vector<int>{'t', 'h', 'e', ' '}));
  EXPECT_EQ(whole.at("tokens").size(), 3u);
  EXPECT_EQ(whole.at("finish"), "length");
  const auto ended = line_of({"--stop_token", std::to_string(whole.at("tokens").at(0).get<int>())});
  EXPECT_EQ(ended.at("tokens"), std::vector{whole.at("tokens").at(0).get<int>()});
  EXPECT_EQ(ended.at("finish"), "stop_token");
}

// Flash does not support its head_dim of 12, and the default's 8 heads do not divide its d_model.
TEST_F(GenerateProgram, ARunOfAnyHeadsNeedsNoFlags) {
  const std::string path = folder_ / "naive", text = folder_ / "text.txt";
  ASSERT_EQ(run({"train", "--config", folder_ / "tiny.toml", "--out", path, "--steps", "1",
                 "--d_model", "36", "--heads", "3", "--kv_heads", "1", "--attention", "naive"})
                .code,
            0);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"generate", path, "--prompt", "the", "--tokens", "1"}, {"eval", path, text}}) {
    const auto with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> args = command;
      args.insert(args.end(), more.begin(), more.end());
      return args;
    };
    const Outcome plain = run(command);
    EXPECT_EQ(plain.code, 0) << plain.err;
    EXPECT_NE(plain.err.find("a slower kernel runs for attention with head_dim 12: flash"),
              std::string::npos)
        << plain.err;
    const Outcome given = run(with({"--d_model", "36"}));
    EXPECT_EQ(given.code, 0) << given.err;
    expect_usage_error(with({"--d_model", "37"}), "d_model is 37, but the model of ");
    expect_usage_error(with({"--d_model", "37"}), " has 36; leave d_model out");
    expect_usage_error(with({"--attention", "flash"}), "head_dim is 12, which attention = flash");
  }
}

TEST_F(GenerateProgram, WarnsOfAPromptThatIsCut) {
  const Outcome outcome = generate("short\n" + std::string(1000, 'x') + "\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string warning = "quern: warning: prompt 2 keeps its last ";
  EXPECT_EQ(outcome.err.find(warning), 0) << outcome.err;
  EXPECT_NE(outcome.err.find(" of 1000 tokens: ctx is "), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace quern
