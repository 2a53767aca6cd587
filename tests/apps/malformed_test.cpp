// Arguments that are not what a command expects: an absurd batch, a folder in place of a file, a
// file in place of a folder, a link to nothing, an empty file, malformed prompts.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class MalformedArguments : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ / "folder");
    write_file(folder_ / "empty", "");
    write_file(folder_ / "text.txt", std::string(2000, 'a'));
    fs::create_symlink("nothing", folder_ / "link");
  }
  std::string at(const std::string& name) const { return folder_ / name; }

  // Expects `quern args` to fail with a message that has all parts and no library's words.
  static void refused(const Words& args, const Words& parts) {
    const Outcome outcome = run(args);
    SCOPED_TRACE(cat(program(args), "\n", outcome.err));
    EXPECT_TRUE(outcome.code == 1 || outcome.code == 2) << outcome.code;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << "lacks: " << part;
    }
    EXPECT_EQ(raw_library_text(outcome.err), "");
  }
  // Words that follow a folder, an empty file and a link to nothing in place of an argument "?".
  void refused_files(const Words& args, const Words& parts) const {
    const Words paths = {at("folder"), at("empty"), at("link")};
    for (size_t i = 0; i < parts.size(); ++i) {
      Words given = args;
      std::replace(given.begin(), given.end(), std::string("?"), paths[i]);
      refused(given, {paths[i], parts[i]});
    }
  }
  Words train(const Words& more) const {
    Words args = {"train",     "--train", at("text.txt"), "--layers", "1",
                  "--d_model", "64",      "--device",     "cpu"};
    args.insert(args.end(), {"--heads", "1", "--steps", "1", "--ctx", "64"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  TemporaryFolder folder_;
};

TEST_F(MalformedArguments, AnAbsurdBatchNamesTheMemoryItNeeds) {
  const Words out = {"--out", at("run")};
  refused(train({"--batch", "1000000000"}),
          {"--batch is 1000000000", "expected an integer from 1 to 1048576"});
  refused(train({"--batch", "1048576", "--d_ff", "65536", "--out", at("run")}),
          {"out of memory on cpu", "training step (batch 1048576, ctx 64): ", " GiB; this machine",
           "batch = "});
  EXPECT_FALSE(fs::exists(at("run")));
  refused({"memory", "--d_model", "1048576", "--heads", "8192", "--ctx", "1048576", "--batch",
           "1048576"},
          {"shape (", "more elements than 64 bits"});
  refused({"tokenizer", "train", at("text.txt"), "--out", at("new"), "--vocab", "1000000000"},
          {"--vocab is 1000000000", "expected an integer from 1 to 16777216"});
}

TEST_F(MalformedArguments, Train) {
  refused_files(train({"--train", "?"}), {"no text", "is empty", "No such file or directory"});
  refused_files(train({"--tokenizer", "?"}), {"has no tokenizer", "has 0 bytes", "no such"});
  refused_files(train({"--from", "?"}), {"no config.toml", "is a file", "no such folder"});
  refused_files({"train", "--resume", "?"}, {"no config.toml", "is a file", "no such folder"});
  refused_files({"train", "--config", "?"}, {"is a folder, expected a TOML file"});
  refused({"train", "--config", at("link")}, {at("link"), "No such file or directory"});
  for (const char* name : {"empty", "link"}) {
    refused(train({"--out", at(name)}), {at(name), "is a file or a link to nothing"});
  }
  refused(train({"--out", at("empty/run")}), {at("empty/run"), "Not a directory"});
}

TEST_F(MalformedArguments, RunsAndModels) {
  const Words parts = {"no config.toml", "is a file, expected a run folder", "no such folder"};
  for (const Words& args : {Words{"generate", "?"},
                            {"eval", "?", at("text.txt")},
                            {"export", "?", at("out")},
                            {"report", "?"},
                            {"watch", "?"}}) {
    refused_files(args, parts);
  }
  refused_files({"import", "?", "--out", at("hf")}, {"config.json", "is a file", "no such folder"});
  refused_files({"verify", "?"}, {"no expected.safetensors", "not a folder", "not a folder"});
}

TEST_F(MalformedArguments, DataAndTokenizers) {
  const std::string link = "is a link to nothing";
  refused_files({"tokenizer", "train", "?", "--out", at("new"), "--vocab", "300"},
                {"folder holds no file", "no text", link});
  refused_files({"tokenizer", "encode", "bytes", "?"}, {"not a regular file"});
  refused_files({"tokenizer", "info", "?"}, {"has no tokenizer", "has 0 bytes", link});
  refused_files({"data", "inspect", "?"}, {"holds no file", "is empty", link});
  refused_files({"data", "prepare", "?", "--out", at("new")}, {"holds no file", "is empty", link});
}

TEST_F(MalformedArguments, PromptsAndStopStrings) {
  ASSERT_EQ(run(train({"--out", at("run")})).code, 0);
  refused_files({"generate", at("run"), "--prompts", "?"},
                {"cannot be read, expected a file", "is empty", "cannot be read"});
  expect_malformed(folder_ / "prompts.txt",
                   {{"an empty line", "The mill\n\nturns\n", "line 2", "is empty", "a prompt"},
                    {"a blank file", "\n", "line 1", "is empty", "a prompt"},
                    {"Latin-1", "The mill\nm\xfchle\n", "line 2: byte 2", "0xfc", "UTF-8"}},
                   [&](const fs::path& path) {
                     const Outcome outcome = run({"generate", at("run"), "--prompts", path});
                     if (outcome.code != 0) fail(outcome.err);
                   });
  refused({"generate", at("run"), "--stop", "a||b"}, {"'a||b'", "empty", "separated by |"});
  refused({"generate", at("run"), "--prompt_ids", "1,x"}, {"prompt_ids", "'x'", "a token id"});
}

}  // namespace
}  // namespace quern
