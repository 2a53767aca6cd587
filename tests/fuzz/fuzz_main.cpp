// quern_fuzz: mutants of valid inputs for every parser, for as long as one likes. A finding is an
// input that crashes a parser, holds it for 10 seconds, makes it ask for 2 GiB, or breaks the
// promise of fuzz_targets.h. It is written to the folder of findings, and the program ends with 1.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "fuzz/fuzz_targets.h"
#include "fuzz/mutator.h"
#include "support/files.h"

extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
// An allocation far beyond the input's size is a finding, and must not return null.
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=2048:detect_leaks=1:allocator_may_return_null=0";
}

namespace quern::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "Usage: quern_fuzz [--target NAME] [--seconds N] [--inputs N] [--seed N] [--findings FOLDER]\n"
    "\n"
    "Parses the inputs of past findings, then mutants of valid inputs, by every parser or one, "
    "each\n"
    "for N seconds (default 10) or N inputs. The same seed gives the same inputs.\n"
    "`quern_fuzz FILE --target NAME` parses one file; `quern_fuzz --list` prints the parsers.\n";
constexpr int kHangSeconds = 10;
constexpr rlim_t kMemory = rlim_t{2} << 30;

// For signal handlers: the input at hand, and the file for it.
const std::string* current_input = nullptr;
char current_file[4096];

void save_input() {
  if (current_input == nullptr) return;
  const int file = open(current_file, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, current_input->data(), current_input->size());
  close(file);
  constexpr char kText[] = "a finding, in the file ";
  if (written >= 0 && write(2, kText, sizeof(kText) - 1) > 0 &&
      write(2, current_file, strlen(current_file)) > 0 && write(2, "\n", 1) > 0) {
    current_input = nullptr;  // saved once
  }
}

void on_signal(int number) {
  constexpr char kHang[] = "no end within 10 seconds\n";
  if (number == SIGALRM && write(2, kHang, sizeof(kHang) - 1) < 0) _exit(1);
  save_input();
  _exit(1);
}

void catch_signals() {
  static char stack[1 << 16];  // SIGSEGV may mean that the usual one is used up
  const stack_t other{stack, 0, sizeof(stack)};
  sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGALRM, &action, nullptr);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(save_input);
    return;
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    sigaction(number, &action, nullptr);
  }
  const rlimit limit{kMemory, kMemory};
  setrlimit(RLIMIT_AS, &limit);
}

struct Options {
  std::string target, file;
  double seconds = 10.0;
  int64_t inputs = 0;
  uint64_t seed = 1;
  fs::path findings = "findings";
  bool list = false;
};

// False after a finding.
bool run(const FuzzTarget& target, const std::string& input, Outcome& outcome) {
  current_input = &input;
  const itimerval hang{{}, {kHangSeconds, 0}};
  setitimer(ITIMER_REAL, &hang, nullptr);
  try {
    outcome = run_target(target, input);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", target.name, error.what());
    save_input();
    return false;
  }
  current_input = nullptr;
  return true;
}

bool fuzz(const FuzzTarget& target, const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::strncpy(current_file, (options.findings / target.name).c_str(), sizeof(current_file) - 1);
  Mutator mutator(options.seed);
  std::vector<std::string> pool = target.seeds;  // and mutants that were accepted
  int64_t inputs = 0, accepted = 0;
  bool fine = true;
  for (const std::string& input : past_findings(target)) {
    Outcome outcome{};
    fine = fine && run(target, input, outcome);
  }
  while (fine && (options.inputs > 0 ? inputs < options.inputs : seconds() < options.seconds)) {
    const std::string& base = pool[mutator.below(pool.size())];
    const std::string input = mutator.mutate(base, pool[mutator.below(pool.size())], target.words);
    Outcome outcome{};
    fine = run(target, input, outcome);
    ++inputs;
    if (fine && outcome == Outcome::accepted) {
      ++accepted;
      if (pool.size() < 256) {
        pool.push_back(input);
      } else {  // the seeds stay
        const size_t seeds = target.seeds.size();
        pool[seeds + mutator.below(pool.size() - seeds)] = input;
      }
    }
  }
  fmt::print("{:<22} {:>10} inputs, {:>9} accepted, {:>7.0f} per second{}\n", target.name, inputs,
             accepted, static_cast<double>(inputs) / seconds(), fine ? "" : ", a FINDING");
  std::fflush(stdout);
  return fine;
}

int main(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == count) fail(cat(word, ": its value is missing"));
      return words[++i];
    };
    if (word == "--help" || word == "-h") return fmt::print("{}", kUsage), 0;
    if (word == "--target")
      options.target = value();
    else if (word == "--seconds")
      options.seconds = std::stod(value());
    else if (word == "--inputs")
      options.inputs = std::stoll(value());
    else if (word == "--seed")
      options.seed = std::stoull(value());
    else if (word == "--findings")
      options.findings = value();
    else if (word == "--list")
      options.list = true;
    else if (word.starts_with("-"))
      fail(cat("unknown flag ", word, "\n", kUsage));
    else
      options.file = word;
  }
  const testing_support::TemporaryFolder scratch;
  const std::vector<FuzzTarget> targets = fuzz_targets(scratch.path());
  if (options.list) {
    for (const FuzzTarget& target : targets) fmt::print("{}\n", target.name);
    return 0;
  }
  fs::create_directories(options.findings);
  catch_signals();
  bool fine = true, found = false;
  for (const FuzzTarget& target : targets) {
    if (!options.target.empty() && target.name != options.target) continue;
    found = true;
    if (options.file.empty()) {
      fine = fuzz(target, options) && fine;
      continue;
    }
    Outcome outcome{};
    std::strncpy(current_file, (options.findings / target.name).c_str(), sizeof(current_file) - 1);
    fine = run(target, testing_support::read_file(options.file), outcome);
    if (fine) fmt::print("{}\n", outcome == Outcome::accepted ? "accepted" : "refused");
  }
  if (!found) fail(cat("no target '", options.target, "'"));
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace quern::fuzz

int main(int count, char** words) {
  try {
    return quern::fuzz::main(count, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "quern_fuzz: {}\n", error.what());
    return 2;
  }
}
