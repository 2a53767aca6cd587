// quern tokenizer, from outside.
#include <nlohmann/json.hpp>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;

std::string corpus() {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "the miller grinds the corn, and the baker bakes bread " + std::to_string(i) + "\n";
  }
  return text;
}

class TokenizerCommand : public ::testing::Test {
 protected:
  TokenizerCommand() { write_file(text_, corpus()); }

  Outcome train(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"tokenizer", "train", text_, "--vocab", "320", "--out", out_};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  }

  TemporaryFolder folder_;
  std::string text_ = folder_ / "text.txt", out_ = folder_ / "tok";
};

TEST_F(TokenizerCommand, TrainsEncodesAndDecodes) {
  const Outcome trained = train();
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(trained.out.starts_with(out_ + ": 320 tokens from 0.0 of 0.0 MB in 1 file"))
      << trained.out;
  for (const char* name :
       {"tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    EXPECT_TRUE(std::filesystem::exists(out_ + "/" + name)) << name;
  }
  const Json config = Json::parse(read_file(out_ + "/tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["add_prefix_space"], false);
  EXPECT_EQ(config["eos_token"], "</s>");

  const Outcome encoded = run({"tokenizer", "encode", out_, "--text", " the  mill\u00e9r\n"});
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  const Outcome decoded = run({"tokenizer", "decode", out_, encoded.out});
  EXPECT_EQ(decoded.out, " the  mill\u00e9r\n");
  // A file, standard input, and standard input again.
  const Outcome piped = run_shell(program({"tokenizer", "encode", out_, text_}) + " | " +
                                  program({"tokenizer", "decode", out_}));
  EXPECT_EQ(piped.out, corpus());
  EXPECT_EQ(run_shell("printf a | " + program({"tokenizer", "encode", out_, "-"})).out,
            run({"tokenizer", "encode", out_, "--text", "a"}).out);
}

TEST_F(TokenizerCommand, InfoSaysWhatItIs) {
  ASSERT_EQ(train().code, 0);
  const Outcome info = run({"tokenizer", "info", out_});
  EXPECT_TRUE(
      info.out.starts_with("kind        sentencepiece\nvocabulary  320\n"
                           "begin       none\nend         2\nhash        "))
      << info.out;
  EXPECT_EQ(run({"tokenizer", "info", "bytes"}).out,
            "kind        bytes\nvocabulary  257\nbegin       none\nend         256\n"
            "hash        bytes\n");
}

TEST_F(TokenizerCommand, TakesFoldersPatternsAndSpecialTokens) {
  write_file(folder_ / "more/a.txt", corpus());
  write_file(folder_ / "more/b.txt", corpus());
  const Outcome folder =
      run({"tokenizer", "train", folder_ / "more", text_, "--vocab", "320", "--out", out_});
  EXPECT_NE(folder.out.find("in 3 files"), std::string::npos) << folder.out << folder.err;
  const std::string second = folder_ / "second";
  const Outcome pattern = run({"tokenizer", "train", folder_ / "more/*.txt", "--vocab", "330",
                               "--out", second, "--special", "<|user|>,<|end|>"});
  EXPECT_NE(pattern.out.find("in 2 files"), std::string::npos) << pattern.out << pattern.err;
  EXPECT_EQ(run({"tokenizer", "encode", second, "--text", "<|end|>"}).out, "4\n");
}

// Neither the new folder's temporary one nor an interrupted run's is an input.
TEST_F(TokenizerCommand, APatternMayMatchTheNewFolder) {
  write_file(folder_ / "text-tok.quern.tmp/tokenizer.model", std::string("\0 cut", 5));
  const Outcome trained = run(
      {"tokenizer", "train", folder_ / "text*", "--vocab", "320", "--out", folder_ / "text-tok"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("in 1 file"), std::string::npos) << trained.out;
}

// Training reads only the text of JSONL, not its syntax: the tokenizer equals that of the text.
TEST_F(TokenizerCommand, TakesTheTextOfJsonLines) {
  ASSERT_EQ(train().code, 0);
  const std::string file = folder_ / "text.jsonl", lines = folder_ / "lines";
  std::string json;
  const std::string text = corpus();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    json += Json{{"id", 7}, {"content", text.substr(begin, end - begin)}}.dump() + "\n\n";
    begin = end + 1;
  }
  write_file(file, json);
  const std::vector<std::string> args = {"tokenizer", "train",   file,    "--vocab", "320",
                                         "--field",   "content", "--out", lines};
  const Outcome trained = run(args);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(read_file(lines + "/tokenizer.model"), read_file(out_ + "/tokenizer.model"));
  write_file(file, json + "{\"content\": 7}\n");
  std::filesystem::remove_all(lines);
  const Outcome broken = run(args);
  EXPECT_EQ(broken.code, 1);
  EXPECT_NE(broken.err.find("text.jsonl:801:"), std::string::npos) << broken.err;
}

TEST_F(TokenizerCommand, FailuresLeaveNothingBehind) {
  ASSERT_EQ(train().code, 0);
  const Outcome again = train();
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("tok exists already"), std::string::npos) << again.err;
  const std::string other = folder_ / "other";
  const auto fails = [&](const std::string& input, const std::string& vocab,
                         const std::string& message) {
    const Outcome outcome = run({"tokenizer", "train", input, "--vocab", vocab, "--out", other});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(other));
    EXPECT_FALSE(std::filesystem::exists(other + ".quern.tmp"));
  };
  write_file(folder_ / "empty.txt", "");
  fails(text_, "100", "too small");
  fails(text_, "50000", "expected at most");
  fails(folder_ / "empty.txt", "320", "there is no text");
  fails(folder_ / "none.txt", "320", "none.txt");
  write_file(folder_ / "a.parquet", "PAR1" + read_file(text_));
  fails(folder_ / "a.parquet", "320", "expected text, but it is a Parquet file; `python3");
}

TEST_F(TokenizerCommand, RefusesWrongUse) {
  expect_usage_error({"tokenizer"}, "expected a subcommand");
  expect_usage_error({"tokenizer", "encod"}, "did you mean `quern tokenizer encode`?");
  expect_usage_error({"tokenizer", "train", text_, "--out", out_}, "--vocab is missing");
  expect_usage_error({"tokenizer", "train", text_, "--vocab", "9"}, "--out is missing");
  expect_usage_error({"tokenizer", "train", "--vocab", "9", "--out", out_}, "no INPUT");
  expect_usage_error({"tokenizer", "train", text_, "--vocab", "9", "--out", out_, "--batch", "2"},
                     "tokenizer train: batch has no meaning here");
  expect_usage_error(
      {"tokenizer", "train", text_, "--vocab", "9", "--out", out_, "--coverage", "2"},
      "--coverage is 2");
  expect_usage_error(
      {"tokenizer", "train", text_, "--vocab", "9", "--out", out_, "--split-digits", "no"},
      "--split_digits is 'no', expected true or false");
  for (const auto& [special, message] : std::vector<std::pair<std::string, std::string>>{
           {"<|a|>,</s>", "--special has '</s>', expected tokens other than <unk>, <s>, </s> and"},
           {"<s>", "--special has '<s>', expected tokens other than"},
           {"<unk>", "--special has '<unk>', expected tokens other than"},
           {"<0x0A>", "--special has '<0x0A>', expected tokens other than"},
           {"<|a|>,<|b|>,<|a|>", "--special has '<|a|>' twice, expected distinct tokens"},
           {"<|a|>,", "--special has an empty entry, expected tokens"}}) {
    expect_usage_error(
        {"tokenizer", "train", text_, "--vocab", "320", "--out", out_, "--special", special},
        message);
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  expect_usage_error(
      {"tokenizer", "train", text_, "--vocab", "320", "--out", out_, "--field", "text"},
      "--field has no meaning with text alone: found " + text_);
  expect_usage_error({"tokenizer", "encode", "bytes"}, "either --text or one FILE");
  const Outcome decoded = run({"tokenizer", "decode", "bytes", "65,x"});
  EXPECT_EQ(decoded.code, 1);
  EXPECT_NE(decoded.err.find("token 1 is 'x'"), std::string::npos) << decoded.err;
  EXPECT_EQ(run({"tokenizer", "train", "--help"}).code, 0);
}

}  // namespace
}  // namespace quern
