#include "child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "dist/signal_block.h"

namespace quern {

namespace {

std::atomic<pid_t> child{0};
std::atomic<int> stop_signal{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);  // a signal handler uses them

extern "C" void hand_on(int signal) {
  stop_signal = signal;
  if (child > 0) kill(child, signal);
}

// Runs in the child. Its own process group makes Ctrl-C reach it once, through the parent. The
// child gets SIGTERM when the parent dies.
[[noreturn]] void become(const std::vector<char*>& argv, int output,
                         std::optional<SignalBlock>& until_forked) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);  // a pending one ends it
  until_forked.reset();
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

// The first line of the program's last error message. A rank that ended with an exit code has said
// why before (supervisor.h).
std::string message_in(const std::filesystem::path& log) {
  std::ifstream in(log);
  std::string message;
  for (std::string line; std::getline(in, line);) {
    if (!message.empty() && line.find(" ended with exit code ") != std::string::npos) continue;
    if (line.starts_with("quern: ") && !line.starts_with("quern: warning: ")) {
      message = line.substr(std::strlen("quern: "));
    }
  }
  return message;
}

}  // namespace

StopSignals::StopSignals() {
  stop_signal = 0;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, hand_on);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

int StopSignals::received() const {
  return stop_signal;
}

std::string run_quern(const std::vector<std::string>& args, const std::filesystem::path& log) {
  std::vector<std::string> words{"quern"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  QUERN_CHECK(output >= 0, "cannot write ", log.string(), ": ", std::strerror(errno));
  {
    // None is lost between the fork and the record of its child.
    std::optional<SignalBlock> until_forked(std::in_place);
    const pid_t pid = stop_signal != 0 ? 0 : fork();
    if (stop_signal == 0 && pid == 0) become(argv, output, until_forked);
    const int error = errno;
    close(output);
    QUERN_CHECK(pid >= 0, "cannot start a process: ", std::strerror(error));
    child = pid;
  }
  if (child == 0) return "";
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  if (WIFSIGNALED(status)) {
    return cat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  }
  const int code = WEXITSTATUS(status);
  if (code == 0) return "";
  const std::string message = message_in(log);
  return message.empty() ? cat("ended with exit code ", code) : message;
}

}  // namespace quern
