// Runs the program `quern`: its exit code, stdout and stderr.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "support/files.h"

namespace quern::testing_support {

struct Outcome {
  int code;
  std::string out, err;
};

// Runs a shell command in the source folder.
inline Outcome run_shell(const std::string& command) {
  const TemporaryFolder folder;
  const std::string out = folder / "out", err = folder / "err";
  const std::string whole = "cd '" + source_folder().string() + "' && { " + command + "; } >'" +
                            out + "' 2>'" + err + "'";
  const int status = std::system(whole.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

// The shell command `quern args`. No argument may contain a single quote.
inline std::string program(const std::vector<std::string>& args) {
  std::string command = cat("'", program_path(), "'");
  for (const std::string& arg : args) command += cat(" '", arg, "'");
  return command;
}

inline Outcome run(const std::vector<std::string>& args) {
  return run_shell(program(args));
}

// The width of the longest line that `quern args` prints.
inline size_t widest_line(const std::vector<std::string>& args) {
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream text(outcome.out);
  size_t most = 0;
  for (std::string line; std::getline(text, line);) most = std::max(most, line.size());
  return most;
}

inline void expect_usage_error(const std::vector<std::string>& args, const std::string& message) {
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 2) << message;
  EXPECT_EQ(outcome.out, "") << message;
  EXPECT_TRUE(outcome.err.starts_with("quern: ")) << outcome.err;
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
}

}  // namespace quern::testing_support
