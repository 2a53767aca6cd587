// Ranks as processes: each runs a function and returns a text, or the message of what it threw.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"

namespace quern::testing_support {

class ForkedRanks {
 public:
  using Work = std::function<std::string(int rank)>;

  ForkedRanks(int size, const Work& work) {
    for (int rank = 0; rank < size; ++rank) start(rank, work);
  }
  ~ForkedRanks() {
    for (size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] <= 0) continue;
      ::kill(pids_[i], SIGKILL);
      ::waitpid(pids_[i], nullptr, 0);
      ::close(pipes_[i]);
    }
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  void send(int rank, int signal) { ::kill(pids_[static_cast<size_t>(rank)], signal); }
  void kill(int rank) { send(rank, SIGKILL); }

  // The rank's text, once it has ended: "CommunicationError: ..." for one, "signal 9" when killed.
  std::string text(int rank) {
    const auto i = static_cast<size_t>(rank);
    std::string text;
    char block[4096];
    for (ssize_t n; (n = ::read(pipes_[i], block, sizeof block)) > 0;) {
      text.append(block, static_cast<size_t>(n));
    }
    int status = 0;
    ::waitpid(pids_[i], &status, 0);
    ::close(pipes_[i]);
    pids_[i] = -1;
    return WIFSIGNALED(status) ? cat("signal ", WTERMSIG(status)) : text;
  }

 private:
  void start(int rank, const Work& work) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::close(ends[0]);
      ::signal(SIGALRM, SIG_DFL);
      ::alarm(60);  // a rank that hangs ends
      std::string text;
      try {
        text = work(rank);
      } catch (const CommunicationError& error) {
        text = cat("CommunicationError: ", error.what());
      } catch (const std::exception& error) {
        text = cat("other error: ", error.what());
      }
      const ssize_t n = ::write(ends[1], text.data(), text.size());
      ::_exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    pipes_.push_back(ends[0]);
  }

  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

}  // namespace quern::testing_support
