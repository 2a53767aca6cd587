// One exception type for everything a user can cause. Its message names the op or file, the
// argument, what was found and what was expected.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace quern {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A mistake in the command line or the configuration; main returns 2 for it.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Joins its arguments as a stream would print them: cat("k has ", 4, " heads").
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void fail(const std::string& message);  // throws Error

}  // namespace quern

// Throws quern::Error with the joined message when `condition` is false. The message is built only
// then.
#define QUERN_CHECK(condition, ...)             \
  do {                                          \
    if (!(condition)) [[unlikely]]              \
      ::quern::fail(::quern::cat(__VA_ARGS__)); \
  } while (false)
