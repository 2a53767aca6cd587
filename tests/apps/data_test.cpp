// `quern data` as a user runs it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "support/compress.h"
#include "support/program.h"
#include "support/random_text.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

class DataProgram : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    return write_file(folder_ / "in" / name, bytes);
  }
  std::vector<std::string> prepare(const fs::path& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> args{"data", "prepare", folder_ / "in", "--out", out};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().lexically_relative(folder)] = read_file(entry.path());
    }
    return files;
  }
  // Starts the program without output.
  static pid_t start(std::vector<std::string> args) {
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      const bool silent = freopen("/dev/null", "w", stderr) && freopen("/dev/null", "w", stdout);
      if (silent) execv(pointers[0], pointers.data());
      _exit(127);
    }
    return child;
  }
  // Runs the program and sends `signal` as soon as the journal has a checkpoint. -1: it had ended.
  int interrupt(std::vector<std::string> args, int signal) {
    args.insert(args.begin(), program_path());
    const pid_t child = start(args);
    const fs::path journal = folder_ / "out.part/journal.jsonl";
    const auto seen = [&] { return read_file(journal).find("\"position\"") != std::string::npos; };
    int status = 0;
    bool ended = false;
    while (!seen() && !(ended = waitpid(child, &status, WNOHANG) == child)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (ended) return -1;
    kill(child, signal);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return 1000 + WTERMSIG(status);
    return WEXITSTATUS(status);
  }
  TemporaryFolder folder_;
  fs::path out_ = folder_ / "out";
};

TEST_F(DataProgram, PreparesAndInspects) {
  write("a.jsonl.zst", zstd("{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
  write("b/c.txt.gz", gzip("three\n"));
  const Outcome prepared = run(prepare(out_, {"--validation_fraction", "0"}));
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_NE(prepared.out.find("train       15 tokens of 3 documents in 1 file"), std::string::npos)
      << prepared.out;
  const Outcome inspected = run({"data", "inspect", out_, "--verify"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  for (const char* part : {"train_00000.bin: llmc_u16, 15 tokens, 3 documents, vocabulary 257",
                           "checksum verified", "3 shortest, 3 median, 4.0 mean, 6 longest",
                           "111 110 101 256 116 119 111 256", "onetwothree"}) {
    EXPECT_NE(inspected.out.find(part), std::string::npos) << part << "\n" << inspected.out;
  }
  const Outcome json = run(
      {"data", "inspect", out_ / "train_00000.bin", "--json", "--window", "1", "--length", "4"});
  const auto object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object["parts"][0]["tokens"], 15);
  EXPECT_EQ(object["parts"][0]["lengths"]["longest"], 6);
  EXPECT_EQ(object["window"]["offset"], 4);
  EXPECT_EQ(object["window"]["text"], "two");
}

TEST_F(DataProgram, OneIsNoPlural) {
  write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\"}\n");
  const Outcome prepared = run(prepare(out_, {"--validation_fraction", "0", "--end_token", "120"}));
  EXPECT_NE(prepared.out.find("train       2 tokens of 1 document in 1 file\n"), std::string::npos)
      << prepared.out;
  EXPECT_NE(prepared.out.find("out: 1 source, "), std::string::npos) << prepared.out;
  EXPECT_NE(prepared.err.find("left out 1 document without text\n"), std::string::npos);
  EXPECT_NE(prepared.err.find("the end token occurs 1 time within"), std::string::npos);
  fs::remove_all(out_);
  run(prepare(out_, {"--validation_fraction", "0"}));
  const Outcome inspected = run({"data", "inspect", out_});
  EXPECT_NE(inspected.out.find("2 tokens, 1 document, vocabulary"), std::string::npos);
  EXPECT_NE(inspected.out.find("  1 document ended by token 256\n"), std::string::npos)
      << inspected.out;
}

TEST_F(DataProgram, TheTokenizerIsKept) {
  write("a.txt", "some text\nmore text\nand the end\n");
  const std::string tokenizer = source_folder() / "tests/fixtures/tokenizers/gpt2.json";
  const Outcome prepared = run(prepare(
      out_, {"--tokenizer", tokenizer, "--end_token", "none", "--validation_fraction", "0.5"}));
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_EQ(read_file(out_ / "tokenizer/tokenizer.json"), read_file(tokenizer));
  const Outcome inspected = run({"data", "inspect", out_});
  EXPECT_NE(inspected.out.find("some text\nmore text\n"), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("validation\n"), std::string::npos) << inspected.out;
}

TEST_F(DataProgram, WarnsWhenDocumentsAreFew) {
  write("a.txt", "one\ntwo\n");
  const Outcome one = run(prepare(out_));
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.err.find("warning"), std::string::npos) << one.err;
  write("b.txt", "three\nfour\n");
  const Outcome two = run(prepare(folder_ / "two"));
  EXPECT_EQ(two.code, 0);
  EXPECT_NE(two.err.find("quern: warning: the text files, a document each, are too few"),
            std::string::npos)
      << two.err;
}

// Detected by content, in a file of any name, and by the names of Hub data sets.
TEST_F(DataProgram, ErrorsPrintTheLineOfPython) {
  const std::string file = write("a.txt", "PAR1abcd");
  const std::string line =
      cat("is a Parquet file; `python3 -c 'import pandas; pandas.read_parquet(\"", file,
          "\").to_json(");
  const std::string download =
      "`python3 -c 'from datasets import load_dataset; load_dataset(\"org/stories\", "
      "split=\"train\").to_json(\"stories.jsonl\")'` downloads it";
  const std::string model =
      "`python3 -c 'from huggingface_hub import snapshot_download; "
      "snapshot_download(\"org/model-1.7B\", local_dir=\"model-1.7B\")'` downloads it";
  using Args = std::vector<std::string>;
  for (const auto& [args, message] : std::vector<std::pair<Args, std::string>>{
           {prepare(out_), line},
           {{"train", "--train", file, "--out", folder_ / "run"}, line},
           {{"data", "prepare", "org/stories", "--out", out_}, download},
           {{"train", "--train", "hf://datasets/org/stories", "--out", folder_ / "run"}, download},
           {{"import", "org/model-1.7B", "--out", folder_ / "run"}, model},
           {{"import", "gpt2", "--out", folder_ / "run"}, "snapshot_download(\"gpt2\""},
           {{"data", "prepare", "wikitext", "--out", out_}, "load_dataset(\"wikitext\""},
           {{"generate", "org/model-1.7B"}, model},
           {{"train", "--from", "org/model-1.7B", "--train", file, "--out", folder_ / "run"},
            model}}) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }
}

TEST_F(DataProgram, UsageErrors) {
  expect_usage_error({"data"}, "expected a subcommand");
  expect_usage_error({"data", "prepair"}, "did you mean `quern data prepare`?");
  expect_usage_error({"data", "prepare", "--out", "x"}, "no INPUT");
  expect_usage_error({"data", "prepare", "a.txt"}, "--out is missing");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--format", "csv"}, "'csv'");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--threads", "-1"}, "--threads is -1");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--validation_fraction", "1"},
                     "--validation_fraction is 1");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--validation_fraction", "nan"},
                     "--validation_fraction is nan, expected a number from 0 to 0.999999");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--shard_tokens", "1e6"},
                     "--shard_tokens is 1e6");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--shard_tokens", "1023"},
                     "--shard_tokens is 1023, expected an integer from 1024 to 2147483647");
  expect_usage_error({"data", "prepare", "a", "--out", "x", "--batch", "4"},
                     "data prepare: batch has no meaning here");
  expect_usage_error({"data", "inspect"}, "found 0 paths");
  expect_usage_error({"data", "inspect", "a", "--window", "1", "--offset", "1"}, "expected one");
  expect_usage_error({"data", "inspect", "a", "--length", "0"}, "--length is 0");
  for (const std::vector<std::string>& args : {std::vector<std::string>{"data", "--help"},
                                               {"data", "prepare", "--help"},
                                               {"data", "inspect", "-h"}}) {
    const Outcome help = run(args);
    EXPECT_EQ(help.code, 0);
    EXPECT_TRUE(help.out.starts_with("Usage: quern data")) << help.out;
  }
}

TEST_F(DataProgram, RefusesFlagsWithoutAUse) {
  const std::string lines = write("a.jsonl", "{\"text\": \"x\"}\n");
  expect_usage_error(prepare(out_, {"--split_on", "blank"}),
                     "--split_on has no meaning with JSONL alone: found " + lines);
  fs::remove(lines);
  const std::string text = write("a.txt", "x\n");
  for (const char* field : {"body", "text"}) {
    expect_usage_error(prepare(out_, {"--field", field}),
                       "--field has no meaning with text alone: found " + text);
  }
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(DataProgram, ErrorsNameThePlace) {
  write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": }\n");
  const Outcome refused = run(prepare(out_, {"--validation_fraction", "0"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("a.jsonl:2:10: is no JSON"), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(out_));
  const Outcome skipped = run(prepare(out_, {"--validation_fraction", "0", "--skip_bad"}));
  EXPECT_EQ(skipped.code, 0);
  EXPECT_NE(skipped.err.find("warning: skipped 1 (bad_json)"), std::string::npos) << skipped.err;
}

// After a kill and after Ctrl-C, --resume gives the bytes of an undisturbed run.
TEST_F(DataProgram, AnInterruptedRunGoesOn) {
  std::mt19937 random(5);
  const std::string text = random_text(random, 3'000'000);
  for (int i = 0; i < 4; ++i) write(cat("a", i, ".txt.gz"), gzip(text));
  const std::string tokenizer = source_folder() / "tests/fixtures/tokenizers/gpt2.json";
  // One thread, and a checkpoint after each block, so that there is time to be interrupted.
  const std::vector<std::string> flags{"--tokenizer", tokenizer, "--end_token",           "none",
                                       "--threads",   "1",       "--validation_fraction", "0.4",
                                       "--seed",      "3",       "--checkpoint_seconds",  "0"};
  ASSERT_EQ(run(prepare(folder_ / "whole", flags)).code, 0);
  const auto expected = contents(folder_ / "whole");
  std::vector<std::string> resumed = flags;
  resumed.push_back("--resume");
  for (const int signal : {SIGKILL, SIGINT, SIGTERM}) {
    fs::remove_all(out_);
    const int code = interrupt(prepare(out_, flags), signal);
    EXPECT_EQ(code, signal == SIGKILL ? 1000 + SIGKILL : 128 + signal);
    EXPECT_FALSE(fs::exists(out_));
    const Outcome refused = run(prepare(out_, flags));
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("--resume continues"), std::string::npos) << refused.err;
    const Outcome finished = run(prepare(out_, resumed));
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_TRUE(contents(out_) == expected) << "signal " << signal;
    EXPECT_NE(run(prepare(out_, resumed)).out.find("is complete already"), std::string::npos);
  }
}

// Peak memory of the process since its exec, in KiB; 0: it has ended. (The rusage of a child
// includes its parent's memory at the fork.)
int64_t peak_kibibytes(pid_t process) {
  std::ifstream status(cat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}

// 600 MB in one line: more than the program may hold. Slow: also left out under sanitizers, which
// hold on to memory.
TEST_F(DataProgram, SlowMemoryIsBounded) {
  std::mt19937 random(9);
  const std::string words = [&] {
    std::string text = random_text(random, 1'000'000);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }();
  {
    fs::create_directories(folder_ / "in");
    std::ofstream file(folder_ / "in/big.txt", std::ios::binary);
    for (int i = 0; i < 600; ++i) file << words;
  }
  std::vector<std::string> args = prepare(out_, {"--threads", "2"});
  args.insert(args.begin(), program_path());
  const pid_t child = start(args);
  int status = 0;
  int64_t kibibytes = 0;  // the last value seen; the first may predate the exec
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (const int64_t now = peak_kibibytes(child); now > 0) kibibytes = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_GT(kibibytes, 64 * 1024);
  // 64 MiB of text are in flight. If the writer is slow, each byte also has a token of 4 bytes: 320
  // MiB. The text has 600 MB.
  EXPECT_LT(kibibytes, 400 * 1024);
}

}  // namespace
}  // namespace quern
