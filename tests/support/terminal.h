// Runs the program `quern` in a pseudo-terminal.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "support/files.h"

namespace quern::testing_support {

struct TerminalOutcome {
  int code;
  std::string text;  // of stdout and stderr, with a carriage return before each line end
};

// `quern args` in a terminal of `columns` x 20; `environment`: "NAME=value" each.
inline TerminalOutcome run_in_terminal(const std::vector<std::string>& args, int columns,
                                       const std::vector<std::string>& environment = {}) {
  std::vector<std::string> words = {"/usr/bin/env", "LC_ALL=C", "TERM=xterm"};
  words.insert(words.end(), environment.begin(), environment.end());
  words.push_back(program_path());
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
  const winsize size{20, static_cast<unsigned short>(columns), 0, 0};
  const int inside = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  EXPECT_EQ(ioctl(inside, TIOCSWINSZ, &size), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(inside, STDOUT_FILENO);
    dup2(inside, STDERR_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  close(inside);
  TerminalOutcome outcome{-1, ""};
  std::string part(1 << 16, '\0');
  for (ssize_t n = 0; (n = read(terminal, part.data(), part.size())) > 0;) {
    outcome.text.append(part, 0, static_cast<size_t>(n));
  }
  close(terminal);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace quern::testing_support
