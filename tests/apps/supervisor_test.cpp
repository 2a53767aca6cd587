// The supervisor of ranks, with shell scripts as ranks.
#include "apps/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Ended {
  int code;  // or -signal
  std::string out, err;
  double seconds;
};

// A supervisor in a process of its own, in a folder where the ranks' scripts leave files.
class Supervised {
 public:
  // `script`: of every rank, which is $QUERN_RANK.
  Supervised(int ranks, const std::string& script, milliseconds limit = milliseconds(4000),
             bool beside_a_thread = false)
      : start_(Clock::now()), pid_(fork()) {
    if (pid_ != 0) return;
    if (beside_a_thread) {
      std::thread([] { std::this_thread::sleep_for(std::chrono::minutes(1)); }).detach();
    }
    // A shell's background jobs, and nohup, ignore some of them.
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(number, SIG_DFL);
    dup2(open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    fs::current_path(folder_ / "");
    setenv("TMPDIR", (folder_ / "").c_str(), 1);
    _exit(supervise(
        {.argv = {"sh", "-c", script}, .ranks = ranks, .limit = limit, .program = "/bin/sh"}));
  }
  ~Supervised() {
    if (pid_ > 0) wait();
  }
  Supervised(const Supervised&) = delete;
  Supervised& operator=(const Supervised&) = delete;

  void signal(int number) const { kill(pid_, number); }
  Ended wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read("out"), read("err"),
            seconds};
  }
  std::string read(const std::string& name) const {
    return fs::exists(folder_ / name) ? read_file(folder_ / name) : "";
  }
  // The process of a rank that has written its number into the file pid.RANK.
  pid_t process(int rank) const {
    const std::string name = cat("pid.", rank);
    await([&] { return read(name).ends_with('\n'); });
    return std::stoi(read(name));
  }
  static void await(const std::function<bool()>& condition) {
    for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(condition());
  }
  // Names in the folder that begin so.
  int64_t files(const std::string& begin) const {
    return std::ranges::count_if(fs::directory_iterator(folder_ / ""), [&](const auto& entry) {
      return entry.path().filename().string().starts_with(begin);
    });
  }

 private:
  TemporaryFolder folder_;
  Clock::time_point start_;
  pid_t pid_;
};

constexpr const char* kPid = "echo $$ >pid.$QUERN_RANK; ";
// Saves at the first signal, as quern train does.
constexpr const char* kStops =
    "trap 'echo $QUERN_RANK saved >&2; exit 130' INT; trap 'exit 143' TERM; trap 'exit 129' HUP; "
    "echo $$ >pid.$QUERN_RANK; while :; do sleep 0.05; done";
constexpr const char* kHangs = "echo $$ >pid.$QUERN_RANK; while :; do sleep 0.05; done";

// Also when nothing has collected its exit code.
bool is_gone(pid_t pid) {
  const std::string stat = read_file(cat("/proc/", pid, "/stat"));
  return stat.find(") Z ") != std::string::npos || kill(pid, 0) != 0;
}

// As the code of quern train says; where no rank says that it is the cause, the first one is named.
TEST(Supervisor, NamesTheCauseAndNotWhoEndedBecauseOfIt) {
  const Ended cause = Supervised(3, "[ $QUERN_RANK = 1 ] && { sleep 0.5; exit 7; }; exit 3").wait();
  EXPECT_EQ(cause.code, 7);
  EXPECT_TRUE(std::regex_search(
      cause.err, std::regex("^quern: rank 1 \\(process [0-9]+\\) ended with exit code 7;")))
      << cause.err;
  const Ended none = Supervised(2, "[ $QUERN_RANK = 0 ] && sleep 0.5; exit 3").wait();
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(std::regex_search(
      none.err, std::regex("^quern: rank 1 \\(process [0-9]+\\) ended with exit code 1;")))
      << none.err;
  const Ended hung =
      Supervised(2,
                 "[ $QUERN_RANK = 1 ] && { trap '' TERM; while :; do sleep 0.05; done; }; exit 3",
                 milliseconds(1500))
          .wait();
  EXPECT_EQ(hung.code, 137);
  EXPECT_TRUE(std::regex_search(
      hung.err, std::regex("^quern: rank 1 \\(process [0-9]+\\) was killed by signal 9")))
      << hung.err;
}

TEST(Supervisor, GivesEachRankItsPlace) {
  Supervised run(3,
                 "echo $QUERN_RANK $QUERN_WORLD_SIZE $QUERN_LOCAL_RANK $QUERN_LOCAL_SIZE "
                 "$QUERN_STORE $PWD >place.$QUERN_RANK; cat >stdin.$QUERN_RANK");
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out + ended.err, "");
  std::string stores;
  for (const int rank : {0, 1, 2}) {
    std::istringstream words(run.read(cat("place.", rank)));
    std::string place, store;
    for (int i = 0; i < 4; ++i) words >> store, place += store + " ";
    words >> store;
    EXPECT_EQ(place, cat(rank, " 3 ", rank, " 3 "));
    EXPECT_TRUE(store.starts_with("file:/")) << store;
    stores += store == stores ? "" : store;
    EXPECT_EQ(run.read(cat("stdin.", rank)), "");
  }
  EXPECT_TRUE(stores.find("file:", 1) == std::string::npos) << "one store for all: " << stores;
  EXPECT_EQ(run.files("quern-ranks-"), 0) << "the store's folder is left";
}

TEST(Supervisor, PassesOutputOnAndNamesTheRank) {
  Supervised run(3,
                 "echo out $QUERN_RANK; echo one; printf 'a\\nb' >&2; sleep 0.1; echo c >&2; "
                 "printf end >&2");
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "out 0\none\n");
  for (const int rank : {1, 2}) {
    std::string lines;
    std::istringstream text(ended.err);
    const std::string begin = cat("rank ", rank, ": ");
    for (std::string line; std::getline(text, line);) {
      const size_t at = line.find(begin);  // rank 0's "end" may stand before it
      if (at != std::string::npos) lines += line.substr(at) + "\n";
    }
    EXPECT_EQ(lines, begin + "a\n" + begin + "bc\n" + begin + "end\n");
  }
}

TEST(Supervisor, PassesLongOutputOnWhole) {
  Supervised run(2, "[ $QUERN_RANK = 0 ] || seq 1 100000 >&2");
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(std::ranges::count(ended.err, '\n'), 100000);
  EXPECT_TRUE(ended.err.ends_with("\nrank 1: 100000\n"));
}

TEST(Supervisor, ReturnsTheCodeOfRankZero) {
  EXPECT_EQ(Supervised(2, "exit 0").wait().code, 0);
  const Ended stopped = Supervised(2, "exit $((141 - QUERN_RANK))").wait();
  EXPECT_EQ(stopped.code, 141) << "by a closed pipe of rank 0";
  EXPECT_EQ(stopped.err, "");
}

TEST(Supervisor, ASignalStopsEveryRankOnce) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), {SIGTERM, 143}, {SIGHUP, 129}}) {
    Supervised run(3, kStops);
    for (const int rank : {0, 1, 2}) run.process(rank);
    run.signal(signal);
    const Ended ended = run.wait();
    EXPECT_EQ(ended.code, code);
    EXPECT_EQ(ended.err.find("all ranks have ended"), std::string::npos) << ended.err;
    if (signal != SIGINT) continue;
    EXPECT_EQ(std::ranges::count(ended.err, '\n'), 3) << ended.err;
    EXPECT_NE(ended.err.find("rank 2: 2 saved\n"), std::string::npos) << ended.err;
  }
}

TEST(Supervisor, ASecondSignalKillsUnlessItIsTheSameRequest) {
  Supervised run(2, cat("trap 'touch got.$QUERN_RANK' INT; ", kHangs));
  const pid_t ranks[] = {run.process(0), run.process(1)};
  const auto asked = std::chrono::steady_clock::now();
  run.signal(SIGINT);
  Supervised::await([&] { return run.files("got.") == 2; });
  run.signal(SIGTERM);
  const bool in_time = std::chrono::steady_clock::now() - asked < kSameRequest;
  std::this_thread::sleep_for(kSameRequest);
  EXPECT_EQ(is_gone(ranks[0]), !in_time);
  run.signal(SIGINT);
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 130);
  EXPECT_EQ(ended.err, "");
  for (const pid_t rank : ranks) EXPECT_TRUE(is_gone(rank));
}

TEST(Supervisor, ASecondHangupDoesNotKill) {
  Supervised run(2, cat("trap 'sleep 0.5; exit 129' HUP; ", kHangs));
  run.process(0), run.process(1);
  run.signal(SIGHUP);
  std::this_thread::sleep_for(milliseconds(200));
  run.signal(SIGHUP);
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 129);
  EXPECT_EQ(ended.err, "");
}

// A rank that dies of the signal before it can handle it takes the others along.
TEST(Supervisor, ASignalDuringTheStartEndsAll) {
  Supervised run(3, cat("[ $QUERN_RANK = 1 ] || trap '' TERM INT; ", kHangs));
  for (const int rank : {0, 1, 2}) run.process(rank);
  run.signal(SIGINT);
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 130);
  EXPECT_EQ(ended.err, "");
  EXPECT_LT(ended.seconds, 3.5);
}

std::string message(int rank, const std::string& how) {
  return cat("quern: rank ", rank, " \\(process [0-9]+\\) ", how, "; all ranks have ended\n");
}

void expect_end(const Ended& ended, int code, const std::string& text, double seconds) {
  EXPECT_EQ(ended.code, code);
  EXPECT_TRUE(std::regex_match(ended.err, std::regex(text))) << ended.err;
  EXPECT_LT(ended.seconds, seconds);
}

TEST(Supervisor, ARankThatFailsEndsAll) {
  Supervised run(3, "[ $QUERN_RANK = 2 ] && exit 7; exec sleep 60");
  expect_end(run.wait(), 7, message(2, "ended with exit code 7"), 4.0);
}

TEST(Supervisor, AKilledRankEndsAll) {
  for (const int victim : {0, 2}) {
    Supervised run(3, kHangs);
    pid_t ranks[3];
    for (const int rank : {0, 1, 2}) ranks[rank] = run.process(rank);
    kill(ranks[victim], SIGKILL);
    const Ended ended = run.wait();
    expect_end(ended, 137, message(victim, "was killed by signal 9 \\(Killed\\)"), 4.5);
    EXPECT_NE(ended.err.find(cat("process ", ranks[victim])), std::string::npos) << ended.err;
    for (const pid_t rank : ranks) EXPECT_TRUE(is_gone(rank));
    EXPECT_EQ(run.files("quern-ranks-"), 0);
  }
}

// The others end by themselves first, with their own errors.
TEST(Supervisor, TheFirstRankToFailIsNamed) {
  Supervised run(3,
                 "[ $QUERN_RANK = 1 ] && kill -SEGV $$; sleep 0.3; "
                 "echo lost rank 1 >&2; exit 1");
  const Ended ended = run.wait();
  EXPECT_EQ(ended.code, 139);
  EXPECT_TRUE(std::regex_search(ended.err, std::regex("\nquern: rank 1 \\(process [0-9]+\\) was "
                                                      "killed by signal 11 \\(Segm[^\n]*; all "
                                                      "ranks have ended\n$")))
      << ended.err;
  EXPECT_NE(ended.err.find("rank 2: lost rank 1\n"), std::string::npos) << ended.err;
  EXPECT_LT(ended.seconds, 2.0) << "nothing to wait for";
}

TEST(Supervisor, RanksThatIgnoreSigtermAreKilled) {
  Supervised run(3, cat("trap '' TERM; [ $QUERN_RANK = 0 ] && exit 1; ", kHangs));
  expect_end(run.wait(), 1, message(0, "ended with exit code 1"), 4.5);
}

TEST(Supervisor, TheOthersGetSigtermBeforeTheLimit) {
  Supervised run(2,
                 "trap 'echo saved >&2; exit 143' TERM; [ $QUERN_RANK = 0 ] && exit 1; "
                 "while :; do sleep 0.05; done");
  expect_end(run.wait(), 1, "rank 1: saved\n" + message(0, "ended with exit code 1"), 4.0);
}

TEST(Supervisor, AStoppedRankEndsAll) {
  Supervised run(3, kHangs);
  for (const int rank : {0, 2}) run.process(rank);
  kill(run.process(1), SIGSTOP);
  expect_end(run.wait(), 137, message(1, "was stopped by signal 19 \\(Stopped[^)]*\\)\\)"), 4.5);
}

TEST(Supervisor, ARankStoppedForAMomentGoesOn) {
  Supervised run(2, cat(kPid, "while [ ! -e end ]; do sleep 0.05; done; touch ended.$QUERN_RANK"),
                 milliseconds(4000));
  run.process(0);
  const pid_t rank = run.process(1);
  kill(rank, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(200));
  kill(rank, SIGCONT);
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_FALSE(is_gone(rank));
  run.signal(SIGKILL);
  run.wait();
}

// The ranks that wait for a stopped one fail first.
TEST(Supervisor, AStoppedRankIsNamedInsteadOfTheOthers) {
  Supervised run(2, cat(kPid, "[ $QUERN_RANK = 1 ] && kill -STOP $$; sleep 0.5; exit 1"));
  expect_end(run.wait(), 137, message(1, "was stopped by signal 19 \\(Stopped[^)]*\\)\\)"), 3.0);
}

TEST(Supervisor, NoRankSurvivesIt) {
  Supervised run(3, cat("trap '' TERM INT HUP; ", kHangs));
  pid_t ranks[3];
  for (const int rank : {0, 1, 2}) ranks[rank] = run.process(rank);
  run.signal(SIGKILL);
  EXPECT_EQ(run.wait().code, -SIGKILL);
  for (const pid_t rank : ranks) Supervised::await([&] { return is_gone(rank); });
}

// The CUDA driver starts one to count GPUs, and the kernel may give it the supervisor's signals.
TEST(Supervisor, SignalsReachItBesideAnotherThread) {
  for (int i = 0; i < 20; ++i) {
    Supervised run(2, "[ $QUERN_RANK = 0 ] || sleep 0.01; exit 0", milliseconds(4000), true);
    expect_end(run.wait(), 0, "", 3.0);
  }
  Supervised stopped(2, kHangs, milliseconds(4000), true);
  for (const int rank : {0, 1}) stopped.process(rank);
  stopped.signal(SIGTERM);
  EXPECT_EQ(stopped.wait().code, 128 + SIGTERM);
}

TEST(Supervisor, AClosedStderrDoesNotChangeTheExitCode) {
  const pid_t pid = fork();
  if (pid == 0) {
    int ends[2];
    if (pipe(ends) != 0 || close(ends[0]) != 0) _exit(1);
    dup2(ends[1], STDERR_FILENO);
    _exit([]() noexcept {
      return supervise({.argv = {"sh", "-c", "exit 7"}, .ranks = 2, .program = "/bin/sh"});
    }());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(Supervisor, AProgramThatCannotStartIsAnError) {
  const TemporaryFolder folder;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    _exit(supervise({.argv = {"x"}, .ranks = 2, .program = "/no/such/program"}));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 127);
  EXPECT_NE(read_file(folder / "err").find("ended with exit code 127; all ranks have ended"),
            std::string::npos);
}

}  // namespace
}  // namespace quern
