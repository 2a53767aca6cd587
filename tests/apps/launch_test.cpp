// `quern train` on several ranks: the flags, and ranks that cannot meet.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "config/config_print.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/free_port.h"
#include "support/paths.h"
#include "support/program.h"
#include "support/sanitized.h"
#include "support/training.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Args = std::vector<std::string>;

class RanksProgram : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 20000);
    save_config(tiny_config(folder_ / "text.txt", ""), folder_ / "tiny.toml");
  }
  Args train_args(const Args& more) const {
    Args args = {"train", "--config", folder_ / "tiny.toml", "--out", folder_ / "run"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  void expect_refusal(const Args& more, const std::string& message) const {
    expect_usage_error(train_args(more), message);
    EXPECT_FALSE(fs::exists(folder_ / "run")) << message;
  }
  // The shell command of one rank on the CPU, as a launcher would start it. Its messages go to the
  // file `name`.
  std::string rank_command(int rank, int size, const std::string& store, const std::string& name,
                           const Args& more = {}) const {
    Args args = train_args({"--device", "cpu", "--comm_limit", "2", "--store", store});
    args.insert(args.end(), more.begin(), more.end());
    return cat("QUERN_RANK=", rank, " QUERN_WORLD_SIZE=", size, " ", program(args), " 2>'",
               (folder_ / name).string(), "'; echo $? >'", (folder_ / (name + ".code")).string(),
               "'");
  }
  // The same with a --config that is not there.
  static std::string without_configuration(std::string command) {
    const std::string name = "tiny.toml";
    return command.replace(command.find(name), name.size(), "absent.toml");
  }
  // Runs the commands side by side, and returns the seconds until the last has ended.
  static double run_together(const Args& commands) {
    std::string all;
    for (const std::string& command : commands) all += cat("(", command, ") & ");
    const auto start = std::chrono::steady_clock::now();
    run_shell(all + "wait");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // The rank that wrote into the file `name` failed with the message, before a run folder was made.
  void expect_failure(const std::string& name, const std::string& message, int code = 1) const {
    expect_message(name, message, code);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  }
  void expect_message(const std::string& name, const std::string& message, int code = 1) const {
    const std::string text = read_file(folder_ / name);
    EXPECT_EQ(read_file(folder_ / (name + ".code")), cat(code, '\n')) << name << ": " << text;
    EXPECT_TRUE(text.starts_with("quern: ")) << name << ": " << text;
    EXPECT_TRUE(std::regex_search(text, std::regex(message)))
        << name << " expected: " << message << "\nfound: " << text;
  }
  bool saved_ranks(int count) const {
    return read_file(folder_ / "run/config.toml").find(cat("\nranks = ", count, "\n")) !=
           std::string::npos;
  }
  // Trains on two ranks until the first step, then runs the shell command, in which $P is the
  // starting process. Returns that process's end.
  Outcome run_until_step(const std::string& command) const {
    const std::string out = (folder_ / "out").string();
    const std::string train = program(
        train_args({"--ranks", "2", "--device", "cpu", "--steps", "1000000", "--log_every", "1"}));
    Outcome outcome = run_shell("TMPDIR='" + folder_.path().string() + "' " + train + " >'" + out +
                                "' & P=$!; for i in $(seq 600); do grep -qs '^step' '" + out +
                                "' && break; sleep 0.1; done; " + command + "; wait $P");
    outcome.out = read_file(out);
    return outcome;
  }
  // Folders of stores that are left.
  int64_t leftovers() const {
    return std::ranges::count_if(fs::directory_iterator(folder_.path()), [](const auto& entry) {
      return entry.path().filename().string().starts_with("quern-");
    });
  }
  static bool has_program(const std::string& name) {
    return run_shell("command -v " + name).code == 0;
  }
  std::string file_store() const { return cat("file:", (folder_ / "store").string()); }

  TemporaryFolder folder_;
};

TEST_F(RanksProgram, RefusesWrongFlagsBeforeTheFirstRank) {
  expect_refusal({"--gpus", "5000"}, "train: found --gpus 5000, but this machine has ");
  expect_refusal({"--gpus", "0"}, "--gpus is 0, expected an integer from 1 to 65536");
  expect_refusal({"--gpus", "all"}, "--gpus is all, expected an integer");
  expect_refusal({"--gpus"}, "--gpus has no value");
  expect_refusal({"--gpus", "2", "--ranks", "3"}, "found --gpus 2 and --ranks 3, expected one of");
  expect_refusal({"--gpus", "2", "--device", "cpu"},
                 "found --gpus 2 and --device cpu; --ranks N --device cpu starts ranks on the CPU");
  expect_refusal({"--ranks", "5000", "--device", "cuda"},
                 "train: found ranks = 5000 and device = cuda, but this machine has ");
  expect_refusal({"--ranks", "0"}, "--ranks is 0, expected an integer from 1 to 65536");
  expect_refusal(
      {"--ranks", "2", "--parallel", "none", "--device", "cpu"},
      "parallel is none, but there are 2 ranks; expected auto, ddp, zero1, zero2 or fsdp");
  if (cuda::device_count() == 0) {  // a run of four ranks that goes on with one
    const std::string four = write_file(folder_ / "four.toml", "[parallel]\nranks = 4\n");
    expect_usage_error({"train", "--config", four, "--gpus", "1", "--parallel", "none"},
                       "found --gpus 1, but this machine has 0 GPUs");
  }
  expect_refusal({"--parallel", "ddpp"},
                 "--parallel is ddpp, expected one of auto, none, ddp, zero1, zero2, fsdp");
  expect_refusal({"--moments", "fp16"}, "--moments is fp16, expected one of fp32, bf16");
  expect_refusal({"--store", "host:5"}, "--store is 'host:5', expected file:FOLDER or tcp:HOST");
  expect_refusal({"--nproc_per_node", "2"}, "did you mean --ranks?");
}

TEST_F(RanksProgram, RefusesALaunchersWrongVariables) {
  const auto refuse = [&](const std::string& variables, const Args& more,
                          const std::string& message) {
    const Outcome outcome = run_shell(variables + " " + program(train_args(more)));
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  refuse("RANK=2 WORLD_SIZE=2", {},
         "RANK is 2 and WORLD_SIZE is 2, expected a rank below the size");
  refuse("RANK=x WORLD_SIZE=2", {}, "ranks by torchrun: RANK is 'x', expected a number");
  refuse("WORLD_SIZE=2", {}, "WORLD_SIZE is 2, but RANK is not set");
  refuse("RANK=0 WORLD_SIZE=2", {},
         "has no address to meet the others; give --store tcp:HOST:PORT");
  const std::string two = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1";
  refuse(two, {"--ranks", "4"}, "train: found 4 ranks, but torchrun has started 2");
  refuse(two, {"--gpus", "4"}, "train: found 4 ranks, but torchrun has started 2");
  refuse(two, {"--parallel", "none"}, "parallel is none, but there are 2 ranks");
}

TEST_F(RanksProgram, OneRankOfALauncherIsAPlainTraining) {
  const Outcome outcome = run_shell("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 " +
                                    program(train_args({"--steps", "2", "--ranks", "1"})));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(read_file(folder_ / "run/config.toml").find("\nranks = 1\n"), std::string::npos);
}

std::string weights_after(const fs::path& run, const std::string& step) {
  return saved_weights(run / "checkpoints" / ("step_" + step));
}

TEST_F(RanksProgram, TrainTogether) {
  const Args two = {"--ranks", "2", "--device", "cpu", "--steps", "4"};
  const Outcome outcome = run(train_args(two));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find(" parameters, 256 tokens a step\n"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("run folder"), outcome.out.rfind("run folder  ")) << "from one rank";
  EXPECT_TRUE(saved_ranks(2));
  EXPECT_EQ(leftovers(), 0);
  fs::rename(folder_ / "run", folder_ / "two");
  EXPECT_TRUE(
      fs::exists(folder_ / "two/checkpoints/step_00000004/model-00002-of-00002.safetensors"));
  EXPECT_EQ(run({"verify-run", folder_ / "two"}).code, 0);
  const Outcome exported = run({"export", folder_ / "two", folder_ / "hf"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_TRUE(fs::exists(folder_ / "hf/model.safetensors"));
  ASSERT_EQ(run(train_args({"--accumulate", "2", "--device", "cpu", "--steps", "4"})).code, 0);
  EXPECT_TRUE(weights_after(folder_ / "two", "00000004") ==
              weights_after(folder_ / "run", "00000004"))
      << "other bits than of two micro-batches";
}

// zero1, zero2 and fsdp, on three and on four processes.
TEST_F(RanksProgram, ThreeAndFourTrainTheBitsOfOne) {
  for (const int ranks : {3, 4}) {
    const Args all = {"--device", "cpu", "--precision", "bf16", "--steps", "3"};
    const auto train_into = [&](const std::string& name, const Args& more) {
      Args args = train_args(all);
      args.insert(args.end(), more.begin(), more.end());
      const Outcome outcome = run(args);
      EXPECT_EQ(outcome.code, 0) << name << outcome.err;
      fs::rename(folder_ / "run", folder_ / cat(name, ranks));
      return weights_after(folder_ / cat(name, ranks), "00000003");
    };
    const std::string expected = train_into("one", {"--accumulate", cat(ranks)});
    for (const char* parallel : {"zero1", "zero2", "fsdp"}) {
      EXPECT_TRUE(train_into(parallel, {"--ranks", cat(ranks), "--parallel", parallel}) == expected)
          << parallel << " on " << ranks;
    }
  }
}

TEST_F(RanksProgram, AProfileShowsWhatTheyExchange) {
  const auto profile = [&](const Args& more) {
    Args args = {"profile",
                 "--ranks",
                 "2",
                 "--device",
                 "cpu",
                 "--d_model",
                 "32",
                 "--layers",
                 "2",
                 "--heads",
                 "2",
                 "--vocab",
                 "64",
                 "--ctx",
                 "16",
                 "--batch",
                 "2",
                 "--out",
                 folder_ / "profile"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  for (const char* parallel : {"ddp", "fsdp"}) {
    const Outcome outcome = profile({"--parallel", parallel, "--steps", "2"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("train on CPU, rank 0 of 2 over Gloo"), std::string::npos)
        << outcome.out;
    EXPECT_EQ(outcome.out.find("rank 1"), std::string::npos) << outcome.out;
    for (const char* row : {"\nexchange ", "\ngather ", "\nCommunication takes "}) {
      EXPECT_NE(outcome.out.find(row), std::string::npos) << row << outcome.out;
    }
    const auto json = nlohmann::json::parse(read_file(folder_ / "profile/profile.json"));
    const double communication = json["split"]["communication_ms"];
    EXPECT_GT(communication, 0.0);
    EXPECT_EQ(json["split"]["work_ms"]["communication"], communication);
    EXPECT_FALSE(fs::exists(folder_ / "profile/memory.html"));
  }
  EXPECT_EQ(leftovers(), 0);
  const Outcome forward = profile({"--phases", "fwd"});
  EXPECT_EQ(forward.code, 2);
  EXPECT_EQ(
      forward.err,
      "quern: profile: found 2 ranks, which need --target train and --phases step: nothing else "
      "communicates\n");
  EXPECT_EQ(profile({"--target", "softmax"}).code, 2);
}

TEST_F(RanksProgram, AResumedRunHasAsManyRanks) {
  const Args two = {"--ranks", "2", "--device", "cpu", "--steps", "4"};
  ASSERT_EQ(run(train_args(two)).code, 0);
  const Args resume = {"train", "--resume", folder_ / "run", "--steps"};
  const auto resumed = [&](const Args& more) {
    Args args = resume;
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const Outcome same = resumed({"6"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(saved_ranks(2));
  // The run's own file gives no new accumulate.
  const std::string file = folder_ / "run/config.toml";
  const Outcome other = resumed({"8", "--ranks", "1", "--config", file});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(read_file(file).find("\naccumulate = 2\n"), std::string::npos);
}

TEST_F(RanksProgram, ASignalSavesAndStops) {
  const Outcome outcome = run_until_step("kill -INT $P");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.err, "quern: stopping after this step; again after a second to stop now\n")
      << "from one rank";
  EXPECT_NE(outcome.out.find("all is saved"), std::string::npos) << outcome.out;
  EXPECT_EQ(leftovers(), 0);
}

// As killall, systemd and Slurm do: each rank gets it a second time from the starting process.
TEST_F(RanksProgram, ASignalToEveryProcessSavesAndStops) {
  const Outcome outcome = run_until_step("kill -TERM $(pgrep -P $P) $P");
  EXPECT_EQ(outcome.code, 143) << outcome.err;
  EXPECT_EQ(outcome.err, "quern: stopping after this step; again after a second to stop now\n");
  EXPECT_NE(outcome.out.find("all is saved"), std::string::npos) << outcome.out;
  EXPECT_EQ(leftovers(), 0);
}

TEST_F(RanksProgram, AKilledRankEndsTheTraining) {
  const Outcome outcome = run_until_step("kill -KILL $(pgrep -P $P | tail -n 1)");
  EXPECT_EQ(outcome.code, 137) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("quern: rank 0 of 2")) << outcome.err;
  EXPECT_TRUE(std::regex_search(
      outcome.err, std::regex("\nquern: rank 1 \\(process [0-9]+\\) was killed by signal 9 "
                              "\\(Killed\\); all ranks have ended\n$")))
      << outcome.err;
  EXPECT_NE(outcome.err.find("are saved; continue with --resume"), std::string::npos);
  EXPECT_EQ(leftovers(), 0);
}

TEST_F(RanksProgram, NoRankOutlivesTheStartingProcess) {
  const Outcome outcome = run_until_step(
      "R=$(pgrep -P $P); kill -KILL $P; sleep 0.5; ps -o stat= "
      "-p $(echo $R | tr ' ' ,) | grep -v Z >&2");
  EXPECT_EQ(outcome.code, 137);
  EXPECT_EQ(outcome.err, "") << "states of processes that live";
  EXPECT_EQ(leftovers(), 0);
}

TEST_F(RanksProgram, JoinUnderMpirun) {
  if (!has_program("mpirun")) GTEST_SKIP() << "no mpirun";
  const Outcome outcome = run_shell("TMPDIR='" + folder_.path().string() +
                                    "' mpirun --allow-run-as-root --oversubscribe -n 2 " +
                                    program(train_args({"--device", "cpu", "--steps", "3"})));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(saved_ranks(2));
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos) << "terminal codes in a pipe";
}

// With a rendezvous of its own, and with the usual one, in which an agent listens on MASTER_PORT;
// as two nodes, each with an agent.
TEST_F(RanksProgram, JoinUnderTorchrun) {
  if (!has_program("torchrun")) GTEST_SKIP() << "no torchrun";
  const std::string train = program(train_args({"--device", "cpu", "--steps", "3"}));
  const auto agent = [&](const std::string& flags) {
    return "torchrun " + flags + " --no_python " + train;
  };
  const auto master = [port = free_port()](int more) {
    return cat(" --master_addr 127.0.0.1 --master_port ", port + more);
  };
  const auto node = [&](int rank) {
    return "timeout 60 " +
           agent(cat("--nnodes 2 --nproc_per_node 1 --node_rank ", rank, master(2)));
  };
  for (const std::string& command :
       {agent("--standalone --nproc_per_node 2"), agent("--nproc_per_node 2" + master(0)),
        cat(node(1), " & ", node(0), "; C=$?; wait $! && exit $C")}) {
    const Outcome outcome = run_shell(command);
    EXPECT_EQ(outcome.code, 0) << command << '\n' << outcome.err;
    EXPECT_TRUE(saved_ranks(2)) << command;
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(RanksProgram, AMissingRankIsAnErrorOfAllOthers) {
  const double seconds = run_together(
      {rank_command(0, 3, file_store(), "zero"), rank_command(2, 3, file_store(), "two")});
  expect_failure("zero", "rank 0 of 3: rank 1 has not started: .* within 1600 ms");
  expect_failure("two", "rank 2 of 3: .*");
  EXPECT_LT(seconds, 10.0);
}

// Each rank has its own arguments and machine, so an error may be of one rank before it can meet
// the others.
TEST_F(RanksProgram, AnErrorBeforeTheMeetingReachesAll) {
  for (const auto& [failing, store] :
       {std::pair(0, cat("tcp:localhost:", free_port())), {2, file_store()}}) {
    Args commands;
    for (const int rank : {0, 1, 2}) {
      const std::string command = rank_command(rank, 3, store, cat(rank));
      commands.push_back(rank == failing ? without_configuration(command) : command);
    }
    EXPECT_LT(run_together(commands), 10.0);
    const std::string message = ".*/absent.toml: ";
    for (const int rank : {0, 1, 2}) {
      if (rank == failing) {
        expect_failure(cat(rank), cat("^quern: ", message), 2);
      } else {
        expect_failure(cat(rank), cat("^quern: rank ", rank, " of 3: rank ", failing,
                                      " of 3 on .* has failed: ", message));
      }
    }
  }
}

TEST_F(RanksProgram, AnErrorOfAllBeforeTheMeetingIsEachRanksOwn) {
  for (const std::string& store : {file_store(), cat("tcp:localhost:", free_port())}) {
    Args commands;
    for (const int rank : {0, 1, 2}) {
      commands.push_back(without_configuration(rank_command(rank, 3, store, cat(rank))));
    }
    EXPECT_LT(run_together(commands), 4.0) << "no rank waits for its whole limit";
    for (const char* name : {"0", "1", "2"}) expect_failure(name, "^quern: .*/absent.toml: ", 2);
  }
}

TEST_F(RanksProgram, ARankThatIsThereTwiceIsAnError) {
  const std::string places =
      "rank 1 is there twice: process [0-9]+ on [^,]*, and process [0-9]+ on ";
  for (const std::string& store : {file_store(), cat("tcp:localhost:", free_port())}) {
    const double seconds =
        run_together({rank_command(0, 3, store, "zero"), rank_command(1, 3, store, "first"),
                      "sleep 0.5; " + rank_command(1, 3, store, "second")});
    expect_failure("zero", "rank 0 of 3: " + places);
    expect_failure("first", "rank 1 of 3: " + places);
    expect_failure("second", "rank 1 of 3: cannot enter its place: " + places);
    EXPECT_LT(seconds, 5.0);
  }
}

TEST_F(RanksProgram, MeetByTheNameOfAMachine) {
  const std::string store = cat("tcp:localhost:", free_port());
  run_together({rank_command(0, 2, store, "zero", {"--steps", "2"}),
                rank_command(1, 2, store, "one", {"--steps", "2"})});
  EXPECT_EQ(read_file(folder_ / "zero"), "");
  EXPECT_EQ(read_file(folder_ / "one"), "");
  EXPECT_TRUE(saved_ranks(2));
}

TEST_F(RanksProgram, DifferentRanksAreAnErrorOfAll) {
  run_together({rank_command(0, 2, file_store(), "zero"), rank_command(1, 3, file_store(), "one")});
  const std::string sizes =
      "rank 0 is one of 2 ranks on CPUs by quern [^;]*, but rank 1 is one of 3 ranks";
  expect_failure("zero", "rank 0 of 2: " + sizes);
  expect_failure("one", "rank 1 of 3: " + sizes);
}

TEST_F(RanksProgram, DifferentConfigurationsAreAnErrorOfAll) {
  run_together({rank_command(0, 2, file_store(), "zero", {"--lr", "0.5"}),
                rank_command(1, 2, file_store(), "one", {"--lr", "0.25"})});
  for (const char* name : {"zero", "one"}) {
    expect_failure(name,
                   "differ in their configuration: line [0-9]+ is 'lr = 0.5' on rank 0 and "
                   "'lr = 0.25' on rank 1");
  }
}

// Without the process that starts and names ranks.
TEST_F(RanksProgram, AStoppedRankIsNamedByTheOthers) {
  const Args steps = {"--steps", "1000000"};
  const std::string stopped = rank_command(2, 3, file_store(), "two", steps);
  run_together({rank_command(0, 3, file_store(), "zero", steps),
                rank_command(1, 3, file_store(), "one", steps),
                cat("exec env ", stopped.substr(0, stopped.find(';')),
                    " & P=$!; sleep 3; kill -STOP $P; sleep 3.5; kill -KILL $P")});
  for (const char* name : {"zero", "one"}) {
    expect_message(name, " of 3 on .*: no answer within 1600 ms from rank 2 on .*: it hangs");
  }
}

// Either one: each writes a file of its own.
TEST_F(RanksProgram, AFullDiskOfOneRankEndsAll) {
  const Args steps = {"--steps", "1000000", "--checkpoint_every", "2"};
  for (const int full : {0, 1}) {
    for (const char* of_before : {"run", "store"}) fs::remove_all(folder_ / of_before);
    const auto command = [&](int rank, const std::string& name) {
      return (rank == full ? "ulimit -f 30; " : "") +
             rank_command(rank, 2, file_store(), name, steps);
    };
    const double seconds = run_together({command(0, "zero"), command(1, "one")});
    const std::string message =
        cat("model-0000", full + 1, "-of-00002.safetensors: cannot be written: File too large");
    expect_message(full == 0 ? "zero" : "one", message);
    expect_message(full == 0 ? "one" : "zero", cat("rank ", full, " of 2 on .*", message));
    EXPECT_TRUE(fs::is_empty(folder_ / "run/checkpoints"));
    EXPECT_LT(seconds, 10.0);
  }
}

// An error that only one rank has, here of its memory, is on the others too.
TEST_F(RanksProgram, TheErrorOfOneRankReachesAll) {
  for (const int failing : {0, 1}) {
    for (const char* of_before : {"run", "store"}) fs::remove_all(folder_ / of_before);
    const auto command = [&](int rank, const std::string& name) {
      Args more = {"--steps", "100", "--d_model", "256"};
      if (rank == failing) more.insert(more.end(), {"--memory_limit", "8"});
      // The snapshot of the memory goes to the working folder.
      return cat("cd '", folder_.path().string(), "'; ",
                 rank_command(rank, 2, file_store(), name, more));
    };
    const double seconds = run_together({command(0, "0"), command(1, "1")});
    const std::string message = "out of memory on cpu";
    expect_message(cat(failing), message);
    expect_message(cat(1 - failing), cat("rank ", 1 - failing, " of 2 on .*: rank ", failing,
                                         " of 2 on .* has failed: .*", message));
    EXPECT_LT(seconds, 10.0);
  }
}

// Between the start and the first collective: the disk is full when the rank enters its host into
// the store. QUERN_FAULT_LOG shows the number of this call.
TEST_F(RanksProgram, ARankThatCannotJoinTheGroupEndsAll) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's library must be the first that is loaded";
  for (const int failing : {0, 1}) {
    fs::remove_all(folder_ / "store");
    fs::create_directory(folder_ / "store");
    const std::string fault =
        cat("QUERN_FAULT_ROOT='", (folder_ / "store").string(), "' QUERN_FAULT_RANK=", failing,
            " QUERN_FAULT=", failing == 0 ? 9 : 10, ":28 LD_PRELOAD='", fault_shim_path(), "' ");
    const Args limit = {"--comm_limit", "20"};
    const double seconds = run_together({fault + rank_command(0, 2, file_store(), "0", limit),
                                         fault + rank_command(1, 2, file_store(), "1", limit)});
    const std::string message = cat("rank ", failing, " of 2 on .*: set of 'gloo/host/", failing,
                                    "': No space left on device");
    expect_failure(cat(failing), cat("^quern: ", message));
    expect_failure(cat(1 - failing), cat("^quern: rank ", 1 - failing, " of 2: ", message));
    EXPECT_LT(seconds, 10.0);
  }
}

// Rank 0 alone writes a profile's folder.
TEST_F(RanksProgram, AProfilesFolderThatCannotBeMadeEndsAll) {
  const std::string profile =
      program({"profile", "--device", "cpu", "--size", "toy", "--batch", "1", "--ctx", "8",
               "--comm_limit", "20", "--store", file_store(), "--out", "/dev/null/profile"});
  Args commands;
  for (const int rank : {0, 1}) {
    commands.push_back(cat("QUERN_RANK=", rank, " QUERN_WORLD_SIZE=2 ", profile, " 2>'",
                           (folder_ / cat(rank)).string(), "'; echo $? >'",
                           (folder_ / cat(rank, ".code")).string(), "'"));
  }
  EXPECT_LT(run_together(commands), 10.0);
  const std::string message = "/dev/null/profile";
  expect_message("0", message);
  expect_message("1", cat("rank 1 of 2 on .*: rank 0 of 2 on .* has failed: .*", message));
}

// Its end is the cause, and the others' follow: the last line names it.
TEST_F(RanksProgram, AFaultOfOneRankIsItsOwn) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's library must be the first that is loaded";
  for (const int rank : {0, 1}) {
    fs::remove_all(folder_ / "run");
    const Outcome outcome = run_shell(
        cat("QUERN_FAULT_ROOT='", (folder_ / "run/checkpoints").string(),
            "' QUERN_FAULT_RANK=", rank, " QUERN_FAULT=4:28 LD_PRELOAD='", fault_shim_path(), "' ",
            program(train_args({"--ranks", "2", "--device", "cpu", "--steps", "4"}))));
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    const std::regex last(cat("\nquern: rank ", rank,
                              " \\(process [0-9]+\\) ended with exit code 1; "
                              "all ranks have ended\n$"));
    EXPECT_TRUE(std::regex_search(outcome.err, last)) << outcome.err;
    const std::regex other(cat("quern: rank ", rank, " of 2 on .*: No space left on device"));
    EXPECT_TRUE(std::regex_search(outcome.err, other)) << outcome.err;
  }
}

// A port on which nothing answers, and one that another program has.
TEST_F(RanksProgram, AnAddressThatDoesNotWorkIsAnError) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string store = cat("tcp:127.0.0.1:", ntohs(address.sin_port));
  const double seconds =
      run_together({rank_command(1, 2, store, "one"),
                    rank_command(1, 2, "tcp:no-such-host.invalid:5", "nowhere")});
  expect_failure("one", store);
  expect_failure("nowhere", "no-such-host.invalid");
  EXPECT_LT(seconds, 10.0);
  if (!kSanitized) {  // the sanitizer's library must be the first that is loaded
    const std::string silent = cat("QUERN_FAULT_NAMES=1 LD_PRELOAD='", fault_shim_path(), "' ");
    EXPECT_LT(run_together({silent + rank_command(1, 2, "tcp:some-host:5", "silent")}), 10.0);
    expect_failure("silent", "no name server has answered for some-host");
  }
  ASSERT_EQ(listen(taken, 1), 0);
  run_together({rank_command(0, 2, store, "zero")});
  expect_failure("zero", store);
  close(taken);
}

}  // namespace
}  // namespace quern
