#include "supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "dist/signal_block.h"
#include "io/descriptor.h"
#include "io/folder.h"
#include "ranks.h"

namespace quern {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kStopped = 128;  // exit codes above it: a signal asked the rank to stop

// In one write, so that lines of several processes do not mix. stderr may be closed.
void write_error(const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

[[noreturn]] void fail_to(const char* what) {
  fail(cat("cannot ", what, ": ", std::strerror(errno)));
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "quern-ranks-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) fail_to(cat("create a folder like ", name).c_str());
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // what is left is small
    remove_tree(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Makes signals readable from a descriptor. Handlers, unlike signalfd, also see a signal that the
// kernel gives to another thread, such as those of the CUDA driver. An ignored SIGHUP (nohup) stays
// ignored.
class SignalQueue {
 public:
  SignalQueue() {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_to("create a pipe");
    reading_ = Descriptor(ends[0]);
    writing_ = Descriptor(ends[1]);
    open_end = writing_.get();
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    for (const int signal : kHandled) {
      struct sigaction before {};
      sigaction(signal, nullptr, &before);
      if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
      sigaction(signal, &action, nullptr);
    }
    pipe_before_ = std::signal(SIGPIPE, SIG_IGN);  // a closed stderr must not end the supervision
  }
  ~SignalQueue() { restore(); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return reading_.get(); }
  int next() const {  // 0: none
    uint8_t signal = 0;
    const ssize_t bytes = retried([&] { return read(reading_.get(), &signal, 1); });
    return bytes == 1 ? signal : 0;
  }
  void restore() const {  // also in a child, after fork
    for (const int signal : kHandled) {
      struct sigaction now {};
      sigaction(signal, nullptr, &now);
      if (now.sa_handler == note) std::signal(signal, SIG_DFL);
    }
    std::signal(SIGPIPE, pipe_before_);
  }

 private:
  static constexpr int kHandled[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  static inline volatile sig_atomic_t open_end = -1;

  static void note(int signal) {
    const int error = errno;
    const auto number = static_cast<uint8_t>(signal);
    // A full pipe has enough to wake the reader, who looks at every child.
    [[maybe_unused]] const ssize_t written = write(open_end, &number, 1);
    errno = error;
  }

  void (*pipe_before_)(int) = SIG_DFL;
  Descriptor reading_, writing_;
};

constexpr int kFollows = 3;  // exit code of a rank that ends because of another
constexpr const char* kSupervised = "QUERN_SUPERVISED";

struct Child {
  int rank = 0;
  pid_t pid = 0;
  Descriptor errors{};  // its stderr; none for rank 0
  std::string line = {};
  std::optional<int> status = {};  // of waitpid, once it has ended
  int stop_signal = 0;             // stopped since `stopped`; 0: not stopped
  Clock::time_point stopped = {};

  bool failed() const {
    return status && (WIFSIGNALED(*status) ||
                      (WEXITSTATUS(*status) != 0 && WEXITSTATUS(*status) <= kStopped));
  }
  bool follows() const { return WIFEXITED(*status) && WEXITSTATUS(*status) == kFollows; }
  int code() const {
    return WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : follows() ? 1 : WEXITSTATUS(*status);
  }
};

std::string signal_text(int signal) {
  return cat("signal ", signal, " (", strsignal(signal), ")");
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_of(const RankPlace& place) {
  std::vector<std::string> all = variables_of(place);
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string variable = *one;
    const std::string name = variable.substr(0, variable.find('=') + 1);
    const bool replaced = std::ranges::any_of(
        all, [&](const std::string& ours) { return !name.empty() && ours.starts_with(name); });
    if (!replaced) all.push_back(variable);
  }
  return all;
}

class Supervisor {
 public:
  explicit Supervisor(const Supervision& what) : what_(what) {
    // Eight killed processes took 1.7 s to leave their GPUs.
    const milliseconds margin = std::min<milliseconds>(what.limit / 2, milliseconds(3000));
    grace_ = what.limit - margin;
    last_grace_ = margin / 3;
    patience_ = grace_ - last_grace_;
    const bool terminal = isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
    line_begin_ = terminal ? "\r\033[K" : "";  // over rank 0's progress line
  }
  ~Supervisor() {
    kill_all(SIGKILL);
    for (Child& child : children_) {
      if (!child.status) retried([&] { return waitpid(child.pid, nullptr, 0); });
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    for (int rank = 0; rank < what_.ranks; ++rank) start(rank);
    while (!all_ended()) {
      wait_for_event();
      take_signals();
      reap();
      for (Child& child : children_) relay(child);
      check_deadlines();
    }
    for (Child& child : children_) {
      relay(child);
      if (!child.line.empty()) print_line(child, child.line);
    }
    return finish();
  }

 private:
  void start(int rank);
  [[noreturn]] void become(int rank, int errors, pid_t parent, char* const* argv,
                           char* const* variables, std::optional<SignalBlock>& blocked) const;
  void wait_for_event() const;
  void take_signals();
  void reap();
  void take_status(Child& child, int status);
  void relay(Child& child) const;
  void print_line(const Child& child, const std::string& line) const;
  void check_deadlines();
  void blame(const Child& child, const std::string& reason);
  void note_follower(const Child& child);
  void end_after(milliseconds grace, Clock::time_point since);
  int finish();

  bool all_ended() const {
    return std::ranges::all_of(children_, [](const Child& c) { return c.status.has_value(); });
  }
  void kill_all(int signal) {
    sent_.push_back(signal);
    for (const Child& child : children_) {
      if (!child.status) kill(child.pid, signal);
    }
  }

  const Supervision& what_;
  milliseconds grace_{}, last_grace_{};  // until SIGTERM, and from there to SIGKILL
  milliseconds patience_{};              // with a stopped rank
  std::string line_begin_;
  TemporaryFolder folder_;
  SignalQueue signals_;
  std::vector<Child> children_;
  int requested_ = 0;  // the signal that asks all ranks to stop
  Clock::time_point requested_at_ = {};
  bool died_of_request_ = false;
  std::vector<int> sent_;                              // signals to all ranks
  int follower_ = -1;                                  // the first that ended because of another
  int culprit_ = -1;                                   // the rank that failed first
  std::string reason_;                                 // its end
  std::optional<Clock::time_point> terminate_, kill_;  // still to come
  std::optional<Clock::time_point> ending_;            // that of kill_, also later
};

void Supervisor::start(int rank) {
  std::array<int, 2> ends{-1, -1};
  if (rank > 0 && pipe2(ends.data(), O_CLOEXEC) != 0) fail_to("create a pipe");
  Descriptor ours(ends[0]), theirs(ends[1]);
  if (rank > 0) fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  const std::string store = cat("file:", folder_.path().string());
  std::vector<std::string> variables = environment_of({.rank = rank,
                                                       .size = what_.ranks,
                                                       .local_rank = rank,
                                                       .local_size = what_.ranks,
                                                       .store = store,
                                                       .own_store = true});
  variables.push_back(cat(kSupervised, "=1"));
  std::vector<std::string> words = what_.argv;
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  const pid_t parent = getpid();
  std::optional<SignalBlock> until_forked(std::in_place);  // the child must not note signals
  const pid_t pid = fork();
  if (pid == 0) become(rank, theirs.get(), parent, argv.data(), envp.data(), until_forked);
  if (pid < 0) fail_to("start a process");
  children_.push_back({.rank = rank, .pid = pid, .errors = std::move(ours)});
}

// Runs in the child, with its signals blocked. Its own process group makes Ctrl-C reach it once,
// through the parent.
void Supervisor::become(int rank, int errors, pid_t parent, char* const* argv,
                        char* const* variables, std::optional<SignalBlock>& blocked) const {
  signals_.restore();
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  if (rank > 0) {
    dup2(nothing, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
  }
  std::signal(SIGTTOU,
              SIG_IGN);  // a terminal may stop a background group that writes (stty tostop)
  blocked.reset();
  execve(what_.program.c_str(), argv, variables);
  _exit(127);
}

// Returns at a signal, at output, and at the next deadline.
void Supervisor::wait_for_event() const {
  std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point when) { next = next ? std::min(*next, when) : when; };
  for (const Child& child : children_) {
    if (child.errors) sources.push_back({child.errors.get(), POLLIN, 0});
    if (child.stop_signal != 0 && !child.status && culprit_ < 0)
      consider(child.stopped + patience_);
  }
  if (terminate_) consider(*terminate_);
  if (kill_) consider(*kill_);
  int wait = -1;
  if (next) {
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
    wait = static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
  }
  poll(sources.data(), sources.size(), wait);
}

void Supervisor::take_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) continue;
    if (requested_ == 0) {
      requested_ = signal;
      requested_at_ = Clock::now();
      kill_all(signal);
    } else if (signal != SIGHUP && Clock::now() - requested_at_ >= kSameRequest) {
      // A closed terminal may raise SIGHUP twice.
      kill_all(SIGKILL);
    }
  }
}

void Supervisor::reap() {
  std::vector<const Child*> ended;
  for (Child& child : children_) {
    int status = 0;
    while (!child.status &&
           waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
      take_status(child, status);
      if (child.failed()) ended.push_back(&child);
    }
  }
  // A death by a signal is more often the cause than an exit code.
  std::ranges::stable_partition(ended, [](const Child* c) { return WIFSIGNALED(*c->status); });
  for (const Child* child : ended) {
    const bool killed = WIFSIGNALED(*child->status);
    if (killed && std::ranges::count(sent_, WTERMSIG(*child->status)) > 0) {
      if (culprit_ >= 0) continue;
      if (follower_ >= 0 && requested_ == 0) {  // the others gave it up, and it did not end
        blame(*child, cat("was killed by ", signal_text(WTERMSIG(*child->status))));
        continue;
      }
      // The request came before the rank could handle it, or twice.
      died_of_request_ = true;
      end_after(milliseconds(0), Clock::now());
      continue;
    }
    const auto stopped = std::ranges::find_if(
        children_, [](const Child& c) { return !c.status && c.stop_signal != 0; });
    if (!killed && stopped != children_.end()) {  // the others gave it up
      blame(*stopped, cat("was stopped by ", signal_text(stopped->stop_signal)));
      continue;
    }
    if (child->follows()) {
      note_follower(*child);
      continue;
    }
    blame(*child, killed ? cat("was killed by ", signal_text(WTERMSIG(*child->status)))
                         : cat("ended with exit code ", child->code()));
  }
}

void Supervisor::take_status(Child& child, int status) {
  if (WIFSTOPPED(status)) {
    child.stop_signal = WSTOPSIG(status);
    child.stopped = Clock::now();
  } else if (WIFCONTINUED(status)) {
    child.stop_signal = 0;
  } else {
    child.status = status;
  }
}

// The first rank to blame counts. A stopped one cannot end by itself.
void Supervisor::blame(const Child& child, const std::string& reason) {
  if (culprit_ >= 0 || died_of_request_) return;
  culprit_ = child.rank;
  reason_ = reason;
  if (!child.status) kill(child.pid, SIGKILL);
  end_after(grace_, child.status ? Clock::now() : child.stopped);
}

// The cause may still be ending: it is blamed when it has, or else this one in the end.
void Supervisor::note_follower(const Child& child) {
  if (follower_ >= 0 || culprit_ >= 0 || died_of_request_) return;
  follower_ = child.rank;
  end_after(grace_, Clock::now());
}

// Sends SIGTERM after the grace, and SIGKILL after that.
void Supervisor::end_after(milliseconds grace, Clock::time_point since) {
  const Clock::time_point kill = since + grace + last_grace_;
  if (ending_ && *ending_ <= kill) return;
  terminate_ = since + grace;
  kill_ = ending_ = kill;
}

void Supervisor::check_deadlines() {
  const Clock::time_point now = Clock::now();
  for (const Child& child : children_) {
    if (child.status || child.stop_signal == 0 || now < child.stopped + patience_) continue;
    blame(child, cat("was stopped by ", signal_text(child.stop_signal)));
  }
  if (terminate_ && now >= *terminate_) {
    kill_all(SIGTERM);
    terminate_.reset();
  }
  if (kill_ && now >= *kill_) {
    kill_all(SIGKILL);
    kill_.reset();
  }
}

void Supervisor::relay(Child& child) const {
  std::array<char, 4096> buffer{};
  while (child.errors) {
    const ssize_t bytes =
        retried([&] { return read(child.errors.get(), buffer.data(), buffer.size()); });
    if (bytes == 0) child.errors.close();
    if (bytes <= 0) break;
    child.line.append(buffer.data(), static_cast<size_t>(bytes));
    size_t begin = 0;
    for (size_t end = 0; (end = child.line.find('\n', begin)) != std::string::npos;) {
      print_line(child, child.line.substr(begin, end - begin));
      begin = end + 1;
    }
    child.line.erase(0, begin);
  }
}

void Supervisor::print_line(const Child& child, const std::string& line) const {
  write_error(cat(line_begin_, "rank ", child.rank, ": ", line, "\n"));
}

int Supervisor::finish() {
  if (culprit_ < 0 && follower_ >= 0) {
    culprit_ = follower_;
    reason_ = "ended with exit code 1";
  }
  if (culprit_ < 0)
    return requested_ != 0 && WIFSIGNALED(*children_[0].status) ? 128 + requested_
                                                                : children_[0].code();
  const Child& child = children_[static_cast<size_t>(culprit_)];
  write_error(cat(line_begin_, "quern: rank ", child.rank, " (process ", child.pid, ") ", reason_,
                  "; all ranks have ended\n"));
  return child.code();
}

}  // namespace

int code_of_follower() {
  return std::getenv(kSupervised) != nullptr ? kFollows : 1;
}

int supervise(const Supervision& what) {
  return Supervisor(what).run();
}

}  // namespace quern
