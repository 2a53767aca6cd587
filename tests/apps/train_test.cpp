// `quern train`, `generate`, `eval` and `export` with careless arguments.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/golden_copy.h"
#include "config/config_print.h"
#include "data/token_file.h"
#include "hf/huggingface.h"
#include "io/checksum.h"
#include "run/checkpoint.h"
#include "run/make_context.h"
#include "run/saved_model.h"
#include "run/weights.h"
#include "support/program.h"
#include "support/sanitized.h"
#include "support/terminal.h"
#include "support/token_files.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Args = std::vector<std::string>;

class TrainProgram : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 20000);
    save_config(tiny_config(folder_ / "text.txt", ""), folder_ / "tiny.toml");
  }
  // `quern train` of the tiny configuration into `name`.
  Args train_args(const std::string& name, const Args& more = {}) const {
    Args args = {"train", "--config", folder_ / "tiny.toml", "--out", folder_ / name};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  void expect_refusal(int code, const Args& args, const std::string& message) const {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, code) << message;
    EXPECT_TRUE(outcome.err.starts_with("quern: ")) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos)
        << "expected: " << message << "\nfound: " << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "bad")) << "a refused run left its folder behind";
  }
  void expect_train_refusal(int code, const Args& more, const std::string& message) const {
    expect_refusal(code, train_args("bad", more), message);
  }
  // The folder into which `quern data prepare` has written the corpus.
  std::string prepared(const std::string& validation_fraction) const {
    std::string data = folder_ / "prepared";
    const Outcome outcome = run({"data", "prepare", folder_ / "text.txt", "--out", data,
                                 "--validation_fraction", validation_fraction});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return data;
  }
  // Starts `quern args`, with stdout and stderr in files; the caller waits for it.
  pid_t start(Args args) const {
    args.insert(args.begin(), program_path());
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    const std::string out = folder_ / "started", err = folder_ / "errors";
    const pid_t child = fork();
    if (child != 0) return child;
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }

  // Waits until the file holds the text; false after 60 s.
  bool holds(const std::string& file, const std::string& text) const {
    for (int wait = 0; wait < 60000; ++wait) {
      if (read_file(folder_ / file).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  TemporaryFolder folder_;
};

std::string weights_after(const fs::path& run, const std::string& step) {
  return read_file(run / "checkpoints" / ("step_" + step) / "model.safetensors");
}

// "4 val_loss 20 loss ...": the step and the first number of each row.
std::string rows_of(const fs::path& run) {
  std::istringstream metrics(read_file(run / "metrics.jsonl"));
  std::string rows;
  for (std::string line; std::getline(metrics, line);) {
    const auto row = nlohmann::ordered_json::parse(line);
    rows += cat(row.begin().value(), " ", std::next(row.begin()).key(), " ");
  }
  return rows;
}

// The lines that are wider than `columns`, except those with a path.
std::string wide_lines(const std::string& text, size_t columns) {
  std::string wide, line;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '\033') {  // ESC [ ... letter
      while (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) == 0) ++i;
    } else if (i < text.size() && text[i] != '\n' && text[i] != '\r') {
      line += text[i];
    } else {
      const bool path =
          line.find("/run") != std::string::npos || line.find(".txt") != std::string::npos;
      if (line.size() > columns && !path) wide += line + "\n";
      line.clear();
    }
  }
  return wide;
}

TEST_F(TrainProgram, PrintsWhatItDoes) {
  const Outcome outcome = run(train_args("run", {"--steps", "12", "--eval_every", "6"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"[model]     d_model=32, d_ff=48", "ctx=32", "[train]     steps=12, batch=4", "parameters",
        "MiB predicted", "first step  after ", "step  1/12  loss ", "step 12/12  loss ", "  norm ",
        "  lr ", " tok/s  ", "ETA ", "step 12/12  validation loss ", "saved ", " MiB of memory",
        "quern generate"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " is not in\n" << outcome.out;
  }
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find("min_p"), std::string::npos) << "a default";
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos) << "a progress line in a pipe";
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos) << "terminal codes in a pipe";
  EXPECT_EQ(outcome.out.find("mfu"), std::string::npos) << "of a CPU's unknown peak";
  EXPECT_EQ(wide_lines(outcome.out, 80), "");
}

TEST_F(TrainProgram, PrintsTheSizeInsteadOfItsDimensions) {
  const Outcome outcome = run(train_args(
      "run", {"--size", "shakespeare-cpu", "--steps", "1", "--batch", "1", "--lr", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("size=\"shakespeare-cpu\", vocab=257"), std::string::npos);
  EXPECT_NE(outcome.out.find("lr=1.0"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("d_model"), std::string::npos) << outcome.out;
}

TEST_F(TrainProgram, PrintsEveryKeyOnRequest) {
  const Outcome outcome = run(train_args("run", {"--steps", "2", "--print-config"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string saved = unsealed(read_file(folder_ / "run/config.toml"), "");
  EXPECT_TRUE(outcome.out.starts_with(saved)) << outcome.out;
}

TEST_F(TrainProgram, ATerminalShowsItsProgress) {
  const Args more = {"--steps", "12", "--eval_every", "6"};
  for (const int columns : {40, 80}) {
    const std::string name = "run" + std::to_string(columns);
    const auto [code, text] = run_in_terminal(train_args(name, more), columns);
    EXPECT_EQ(code, 0) << text;
    EXPECT_NE(text.find("0/12"), std::string::npos) << "before the first step\n" << text;
    EXPECT_NE(text.find("validating: 0/"), std::string::npos) << text;
    EXPECT_NE(text.find("\033[32m"), std::string::npos) << "a coloured bar\n" << text;
    EXPECT_EQ(text.find("saved"), std::string::npos) << text;
    EXPECT_EQ(wide_lines(text, static_cast<size_t>(columns)), "");
  }
}

TEST_F(TrainProgram, ATerminalIsTakenAsItIs) {
  const std::string colourless =
      run_in_terminal(train_args("a", {"--steps", "3"}), 80, {"NO_COLOR=1"}).text;
  EXPECT_NE(colourless.find("\033[K"), std::string::npos) << colourless;
  EXPECT_EQ(colourless.find("\033[3"), std::string::npos) << colourless;
  const std::string dumb =
      run_in_terminal(train_args("b", {"--steps", "3"}), 80, {"TERM=dumb"}).text;
  EXPECT_EQ(dumb.find('\033'), std::string::npos) << dumb;
  EXPECT_NE(dumb.find("ETA "), std::string::npos) << "the lines of a pipe\n" << dumb;
}

TEST_F(TrainProgram, ASampleCannotCommandTheTerminal) {
  Config config = tiny_config(folder_ / "text.txt", "");
  config.sample.prompt = std::string("a\0b\033[2J", 7);
  config.sample.tokens = 1;
  save_config(config, folder_ / "tiny.toml");
  const Outcome outcome = run(train_args("run", {"--steps", "1", "--sample_every", "1"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("a\uFFFDb\uFFFD[2J"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\0'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
  EXPECT_NE(read_file(folder_ / "run/samples.txt").find("b\033[2J"), std::string::npos);
}

TEST_F(TrainProgram, RefusesBadConfigurations) {
  expect_refusal(2, {"train"}, "no data; give --train FILE");
  expect_refusal(2, {"train", "configs/small.toml"}, "--config configs/small.toml");
  expect_refusal(2, {"train", "a.txt"}, "--train a.txt");
  expect_refusal(2, {"train", "--config", ""}, "--config is empty, expected a TOML file");
  expect_refusal(2, {"train", "--config", "a.toml", "--config=b.toml"},
                 "found --config a.toml and --config b.toml, expected one file");
  expect_train_refusal(2, {"--tied", "flase"}, "train: found 'flase', expected only flags\n");
  expect_train_refusal(2, {"--laers", "3"}, "unknown flag --laers, did you mean --layers?");
  expect_train_refusal(2, {"--batch", "0"}, "--batch is 0, expected an integer from 1");
  expect_train_refusal(2, {"--lr", "nan"}, "--lr is nan, expected a number from 0");
  expect_train_refusal(2, {"--d_model", "33"}, "d_model is 33, expected a multiple of heads (4)");
  expect_train_refusal(2, {"--kv_heads", "3"}, "heads is 4, expected a multiple of kv_heads (3)");
  expect_train_refusal(2, {"--head_dim", "10"},
                       "multiples of 8 up to 256): choose such a head_dim, or attention = naive");
  write_file(folder_ / "bad.toml", "[model]\nlayes = 3\n");
  expect_refusal(2, {"train", "--config", folder_ / "bad.toml"},
                 "bad.toml:2: unknown key layes in [model], did you mean layers?");
}

TEST_F(TrainProgram, RefusesBadData) {
  expect_train_refusal(1, {"--train", folder_ / "none.txt"}, "none.txt: cannot be opened");
  write_file(folder_ / "empty.txt", "");
  expect_train_refusal(1, {"--train", folder_ / "empty.txt"}, "empty.txt: text file is empty");
  write_file(folder_ / "short.txt", "short");
  expect_train_refusal(1, {"--train", folder_ / "short.txt"},
                       "short.txt: too short: its training part has ");
  write_token_file(folder_ / "tokens.bin", std::vector<int32_t>(2000, 300), TokenEncoding::raw_u16);
  expect_train_refusal(1, {"--train", folder_ / "tokens.bin", "--vocab", "257"},
                       "tokens.bin: token 0 is 300, expected less than the vocabulary size 257");
}

TEST_F(TrainProgram, RefusesAGpuThatIsNotThere) {
  const std::string message = run(train_args("bad", {"--device", "cuda"})).err;
  if (message.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(message.starts_with("quern: device = cuda: ")) << message;
  EXPECT_NE(message.find("--device cpu"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder_ / "bad"));
}

TEST_F(TrainProgram, RefusesFoldersThatDoNotFit) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const std::string path = folder_ / "run";
  expect_refusal(1, train_args("run"), "exists already");
  expect_refusal(2, {"train", "--resume", path, "--out", folder_ / "bad"}, "--out and --resume");
  expect_refusal(1, {"train", "--resume", path}, "is at step 2 of 2; give more --steps");
  expect_refusal(1, {"train", "--resume", path, "--steps", "3", "--d_ff", "64"},
                 "step_00000002: its model has d_ff = 48, found d_ff = 64");
  expect_refusal(1, {"train", "--resume", path, "--steps", "3", "--ctx", "16"},
                 "step_00000002: its model has ctx = 32, found ctx = 16");
  fs::remove_all(folder_ / "run" / "checkpoints" / "step_00000002");
  expect_refusal(1, {"generate", path}, "has no checkpoint yet");
  expect_refusal(1, {"generate", folder_ / "nowhere"}, "there is no such folder");
}

// A flag may need what the run's configuration has: here bf16.
TEST_F(TrainProgram, AResumedRunMayMoveItsStateToTheHost) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2", "--precision", "bf16"})).code, 0);
  const std::string path = folder_ / "run";
  const Outcome resumed =
      run({"train", "--resume", path, "--steps", "3", "--offload", "optimizer"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  expect_refusal(2, {"train", "--resume", path, "--steps", "4", "--precision", "fp32"},
                 "offload is optimizer, which needs precision = bf16");
}

TEST_F(TrainProgram, AResumedRunMayStoreItsMomentsOtherwise) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const std::string path = folder_ / "run";
  const auto moments_at = [&](int step) {
    const Checkpoint checkpoint =
        open_checkpoint(checkpoint_path(fs::path(path) / "checkpoints", step));
    return checkpoint.moments.tensor(checkpoint.moments.names()[0]).dtype;
  };
  EXPECT_EQ(moments_at(2), DType::f32);
  const auto resume = [&](const char* moments, const char* steps) {
    const Outcome outcome =
        run({"train", "--resume", path, "--moments", moments, "--steps", steps});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  resume("bf16", "3");
  EXPECT_EQ(moments_at(3), DType::bf16);
  resume("fp32", "4");
  EXPECT_EQ(moments_at(4), DType::f32);
}

// Flags that contradict the checkpoint must be rejected, not ignored.
TEST_F(TrainProgram, AModelIsNotGivenAnew) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const std::string path = folder_ / "run", text = folder_ / "text.txt";
  for (const Args& command : {Args{"generate", path, "--tokens", "2"}, Args{"eval", path, text}}) {
    const auto with = [&](const Args& flags) {
      Args args = command;
      args.insert(args.end(), flags.begin(), flags.end());
      return args;
    };
    expect_refusal(2, with({"--d_model", "64"}), "d_model is 64, but the model of ");
    expect_refusal(2, with({"--d_model", "64"}), "step_00000002 has 32; leave d_model out");
    expect_refusal(2, with({"--size", "small"}), "leave size out");
    expect_refusal(2, with({"--rope_theta", "5"}), "rope_theta is 5.0, but the model of ");
    expect_refusal(2, with({"--from", path}), "--from ");
    // Flags that agree with the model are accepted, as in a configuration file.
    const Outcome outcome = run(with({"--config", folder_ / "tiny.toml", "--device", "cpu"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  expect_refusal(2, {"generate", path, "--ctx", "16"}, "ctx is 16, but the model of ");
  EXPECT_EQ(run({"eval", path, text, "--ctx", "16"}).code, 0);  // shorter windows
}

TEST_F(TrainProgram, ADamagedTokenizerIsAnErrorUnlessNoneIsWanted) {
  const GoldenCopy model("mha");
  write_file(model.path() / "tokenizer.json", "{}");
  const std::string tokens = folder_ / "tokens.bin";
  write_token_file(tokens, std::vector<int32_t>(2000, 65), TokenEncoding::raw_u16);
  const Args import = {"import", model.path(), "--out", folder_ / "bad"};
  const Args train = {"train",   "--from", model.path(),    "--train",  tokens,
                      "--steps", "1",      "--ctx",         "16",       "--format",
                      "nanogpt", "--out",  folder_ / "bad", "--device", "cpu"};
  for (const Args& command : {import, train}) {
    expect_refusal(1, command, "case/tokenizer.json: has no model");
    expect_refusal(1, command, "--tokenizer none");
    Args without = command;
    without.insert(without.end(), {"--tokenizer", "none"});
    const Outcome outcome = run(without);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "bad/tokenizer"));
    const Outcome made = run({"generate", folder_ / "bad", "--prompt_ids", "1,2", "--tokens", "2"});
    EXPECT_EQ(made.code, 0) << made.err;
    fs::remove_all(folder_ / "bad");
  }
  expect_refusal(2, {"import", model.path(), "--out", folder_ / "bad", "--tokenizer", "bytes"},
                 "import: --tokenizer is bytes, expected none");
}

TEST_F(TrainProgram, PromptsMustBeUtf8) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const std::string path = folder_ / "run";
  expect_refusal(2, {"generate", path, "--prompt", "caf\xe9"}, "--prompt is ");
  expect_refusal(2, {"generate", path, "--prompt", "\xed\xa0\x80"}, "--prompt is ");  // a surrogate
  for (const std::string wrong : {"caf\xe9", "caf\xed\xa0\x80"}) {
    write_file(folder_ / "prompts.txt", "café\r\n" + wrong + "\n");
    expect_refusal(1, {"generate", path, "--prompts", folder_ / "prompts.txt"},
                   "prompts.txt: line 2: byte 4 is 0x");
  }
  const Outcome escaped =
      run({"generate", path, "--prompt", R"(a\nb\\n)", "--tokens", "1", "--json"});
  EXPECT_EQ(nlohmann::json::parse(escaped.out).at("prompt"), "a\nb\\n") << escaped.err;
}

TEST_F(TrainProgram, ADamagedCheckpointIsNamed) {
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const fs::path weights = folder_ / "run" / "checkpoints/step_00000002/model.safetensors";
  const std::string good = read_file(weights);
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  write_file(weights, flipped);
  expect_refusal(1, {"generate", folder_ / "run"}, "model.safetensors: checksum is");
  write_file(weights, good.substr(0, good.size() / 2));
  expect_refusal(1, {"generate", folder_ / "run"}, "model.safetensors: has ");
}

// Ctrl-C, SIGTERM and SIGHUP save a checkpoint; the resumed run equals an uninterrupted one.
TEST_F(TrainProgram, SignalsSaveAndResumeIsExact) {
  // 26 or 1 ms each: the signal has to arrive before the last.
  const std::string steps = kSanitized ? "200" : "2000";
  ASSERT_EQ(run(train_args("whole", {"--steps", steps})).code, 0);
  signal(SIGHUP, SIG_DFL);  // or the children would ignore it, as under nohup
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = "run" + std::to_string(signal);
    const pid_t child = start(train_args(name, {"--steps", steps}));
    ASSERT_GT(child, 0);
    const fs::path metrics = folder_ / name / "metrics.jsonl";
    for (int wait = 0; wait < 20000 && std::ranges::count(read_file(metrics), '\n') < 10; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(child, signal);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    const std::string out = read_file(folder_ / "started");
    EXPECT_NE(out.find("Go on with\n  quern train --resume"), std::string::npos) << out;
    const Outcome resumed = run({"train", "--resume", folder_ / name});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.out.find("resumed     after step"), std::string::npos);
    const std::string last = std::string(8 - steps.size(), '0') + steps;
    const std::string weights = weights_after(folder_ / name, last);
    ASSERT_FALSE(weights.empty());
    EXPECT_TRUE(weights == weights_after(folder_ / "whole", last));
  }
}

TEST_F(TrainProgram, ASignalIsAnsweredWithinTheStepAndTheNextEndsIt) {
  // One step has so many micro-batches that the test never sees its end.
  const pid_t child = start(train_args("run", {"--accumulate", "1000000"}));
  ASSERT_GT(child, 0);
  EXPECT_TRUE(holds("started", "run folder"));
  kill(child, SIGTERM);
  EXPECT_TRUE(holds("errors", "stopping after this step; again after a second to stop now\n"));
  kill(child, SIGSTOP);  // or it has saved before the next signal counts as another request
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WNOHANG), 0) << "the first signal ended it";
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  kill(child, SIGINT);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

// killall and systemd signal the program itself, and the one that started it, which sends it on.
TEST_F(TrainProgram, TheSameRequestTwiceSaves) {
  const pid_t child = start(train_args("run", {"--accumulate", "1000000"}));
  ASSERT_GT(child, 0);
  EXPECT_TRUE(holds("started", "run folder"));
  kill(child, SIGTERM);
  EXPECT_TRUE(holds("errors", "stopping after this step; again after a second to stop now\n"));
  kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

// During the start, steps, saves, validations and samples.
TEST_F(TrainProgram, ASignalAtAnyMomentLeavesARunThatGoesOn) {
  const Args every = {"--steps",        "40", "--checkpoint_every", "2", "--eval_every", "2",
                      "--sample_every", "2",  "--tokens",           "4"};
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run(train_args("whole", every)).code, 0);
  const auto length = std::chrono::steady_clock::now() - begin;  // also under sanitizers
  const std::string expected = weights_after(folder_ / "whole", "00000040");
  ASSERT_FALSE(expected.empty());
  int answered = 0;
  for (int i = 0; i < 12; ++i) {
    const std::string name = cat("run", i);
    SCOPED_TRACE(name);
    const pid_t child = start(train_args(name, every));
    std::this_thread::sleep_for(length * i / 12);
    kill(child, SIGTERM);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
      EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM) << read_file(folder_ / "errors");
      ++answered;
    } else if (WIFSIGNALED(status)) {  // before the program answers signals
      EXPECT_EQ(WTERMSIG(status), SIGTERM);
    }
    const bool begun = fs::exists(folder_ / name / "config.toml");
    const Outcome rest =
        run(begun ? Args{"train", "--resume", folder_ / name} : train_args(name, every));
    EXPECT_TRUE(rest.code == 0 || rest.err.find("is at step 40 of 40") != std::string::npos)
        << rest.err;
    EXPECT_TRUE(weights_after(folder_ / name, "00000040") == expected);
    EXPECT_EQ(read_file(folder_ / name / "samples.txt"), read_file(folder_ / "whole/samples.txt"));
  }
  EXPECT_GT(answered, 0);
}

// Times come from the steady clock; the wall clock only stamps lines of metrics.jsonl.
TEST_F(TrainProgram, AClockThatJumpsChangesOnlyTimeStamps) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's library must be the first that is loaded";
  const Args steps = {"--steps",        "20", "--checkpoint_every", "3", "--eval_every", "4",
                      "--sample_every", "5",  "--tokens",           "4"};
  ASSERT_EQ(run(train_args("whole", steps)).code, 0);
  const std::string jumping = cat("QUERN_FAULT_CLOCK=1 LD_PRELOAD='", fault_shim_path(), "' ");
  const Outcome outcome = run_shell(jumping + program(train_args("run", steps)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(weights_after(folder_ / "run", "00000020") ==
              weights_after(folder_ / "whole", "00000020"));
  EXPECT_EQ(read_file(folder_ / "run/samples.txt"), read_file(folder_ / "whole/samples.txt"));
  EXPECT_EQ(rows_of(folder_ / "run"), rows_of(folder_ / "whole"));
  std::istringstream metrics(read_file(folder_ / "run/metrics.jsonl"));
  double earlier = 0.0;
  bool back = false;
  for (std::string line; std::getline(metrics, line);) {
    const auto row = nlohmann::json::parse(line);
    back = back || row.at("time") < earlier;
    earlier = row.at("time");
    const double ms = row.value("ms", 1.0);
    EXPECT_TRUE(ms > 0.0 && ms < 60000.0) << line;
  }
  EXPECT_TRUE(back) << "the clock did not jump";
  for (const Args& reader :
       {Args{"watch", folder_ / "run", "--once"}, Args{"verify-run", folder_ / "run"},
        Args{"report", folder_ / "run", "--out", folder_ / "report.html"}}) {
    const Outcome read = run_shell(jumping + program(reader));
    EXPECT_EQ(read.code, 0) << reader[0] << ": " << read.err;
  }
}

TEST_F(TrainProgram, AClosedPipeSavesToo) {
  // The pipe is closed before the first line is written, and after it.
  for (const std::string name : {"true", "head -n 1"}) {
    const fs::path run_folder = folder_ / name;
    const std::string command = program(train_args(name, {"--steps", "100000"}));
    const fs::path code = folder_ / "code";
    const Outcome outcome =
        run_shell("{ sleep 0.1; " + command + "; echo $? >'" + code.string() + "'; } | " + name);
    EXPECT_EQ(read_file(code), cat(128 + SIGPIPE, "\n")) << name << ": " << outcome.err;
    const Outcome generated = run({"generate", run_folder, "--tokens", "2"});
    EXPECT_EQ(generated.code, 0) << name << ": " << generated.err;
  }
}

TEST_F(TrainProgram, AFileSizeLimitIsAnErrorAndNotASignal) {
  const Outcome outcome =
      run_shell("ulimit -f 20; " + program(train_args("run", {"--steps", "2"})));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("step_00000002"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
}

TEST_F(TrainProgram, EvaluatesTheValidationPartOfPreparedData) {
  const std::string data = prepared("0.3");
  ASSERT_EQ(run(train_args("run", {"--steps", "2", "--train", data})).code, 0);
  const auto loss_of = [&](const std::string& path) {
    const Outcome outcome = run({"eval", folder_ / "run", path, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out.substr(0, outcome.out.find("\"seconds\""));
  };
  EXPECT_EQ(loss_of(data), loss_of(data + "/validation_00000.bin"));
  EXPECT_NE(loss_of(data), loss_of(data + "/train_00000.bin"));
}

TEST_F(TrainProgram, WarnsWhenItEvaluatesATrainingSplit) {
  const std::string data = prepared("0");
  ASSERT_EQ(run(train_args("run", {"--steps", "2"})).code, 0);
  const Outcome outcome = run({"eval", folder_ / "run", data, "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.err.find("prepared has no validation split"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"eval", folder_ / "run", folder_ / "text.txt"}).err.find("split"),
            std::string::npos);
}

// Text in the run's own tokenizer gives the loss of the same text prepared with it.
TEST_F(TrainProgram, EvaluatesOtherTextWithTheRunsTokenizer) {
  const std::string other =
      write_file(folder_ / "other.txt", read_file(folder_ / "text.txt").substr(9, 9990));
  const std::string gpt2 = source_folder() / "tests/fixtures/tokenizers/gpt2.json";
  for (const std::string& tokenizer : {std::string("bytes"), gpt2}) {
    const std::string name = tokenizer == gpt2 ? "bpe" : "bytes";
    const std::string data = folder_ / (name + "-data"), bare = folder_ / (name + "-other");
    const auto prepare = [&](const std::string& text, const std::string& out,
                             const std::string& fraction) {
      const Outcome outcome = run({"data", "prepare", text, "--out", out, "--tokenizer", tokenizer,
                                   "--validation_fraction", fraction});
      EXPECT_EQ(outcome.code, 0) << outcome.err;
    };
    prepare(folder_ / "text.txt", data, "0.3");
    prepare(other, bare, "0");
    const Outcome trained = run(train_args(name, {"--steps", "2", "--train", data}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const auto loss_of = [&](const std::string& path) {
      const Outcome outcome = run({"eval", folder_ / name, path, "--json"});
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return outcome.out.substr(0, outcome.out.find("\"seconds\""));
    };
    EXPECT_EQ(loss_of(other), loss_of(bare + "/train_00000.bin")) << name;
  }
}

TEST_F(TrainProgram, TextAndTokensDoNotMix) {
  ASSERT_EQ(run(train_args("text", {"--steps", "2"})).code, 0);
  write_token_file(folder_ / "a.bin", std::vector<int32_t>(2000, 65), TokenEncoding::llmc_u16);
  const Outcome tokens = run(train_args("tokens", {"--steps", "1", "--train", folder_ / "a.bin"}));
  ASSERT_EQ(tokens.code, 0) << tokens.err;
  for (const char* part : {"/tokens --prompt_ids 1,2,3\n", "done:       1 step, "}) {
    EXPECT_NE(tokens.out.find(part), std::string::npos) << tokens.out;
  }
  expect_refusal(1, {"eval", folder_ / "text", folder_ / "a.bin"}, "a.bin is a token file, but ");
  expect_refusal(1, {"eval", folder_ / "tokens", folder_ / "text.txt"}, "text.txt is text, but ");
  const std::string brief = write_file(folder_ / "brief.txt", "brief");
  expect_refusal(1, {"eval", folder_ / "text", brief}, "brief.txt: too short: has 5 tokens, ");
  expect_refusal(1, {"generate", folder_ / "tokens"}, "give --prompt_ids");
  const Outcome made =
      run({"generate", folder_ / "tokens", "--prompt_ids", "5,65", "--tokens", "3"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(std::ranges::count(made.out, ' '), 3);
}

TEST_F(TrainProgram, ExportIsReadBackAsItWas) {
  ASSERT_EQ(run(train_args("run", {"--steps", "20", "--eval_every", "10"})).code, 0);
  const Outcome outcome = run({"export", folder_ / "run", folder_ / "hf"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ComputeSection compute;
  compute.device = DeviceChoice::cpu;
  const auto context = make_context(compute, 0);
  const ContextScope scope(*context);
  const SavedModel best = load_saved_model(folder_ / "run", false, compute);
  EXPECT_EQ(read_hf_config(folder_ / "hf"), best.state.model);
  const TensorSource source = TensorSource::open(folder_ / "hf");
  const HostTensors weights = weights_of(best.instance->arena);
  EXPECT_EQ(source.names().size(), weights.views.size());
  for (const TensorView& view : weights.views) {
    EXPECT_TRUE(std::ranges::equal(view.data, source.tensor(view.name).data)) << view.name;
  }
  expect_refusal(1, {"export", folder_ / "run", folder_ / "hf"}, "exists already");
  expect_refusal(2, {"export", folder_ / "run"}, "expected a run folder and a new folder");
}

}  // namespace
}  // namespace quern
