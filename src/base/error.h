// The exception type of all errors that a user can cause. The message names the op or file, the
// argument, the value found and the value expected.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace quern {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A mistake in the command line or the configuration; main then returns 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Joins its arguments as a stream would print them: cat("k has ", 4, " heads").
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // throws when out of memory, instead of truncating
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void fail(const std::string& message);  // throws Error

}  // namespace quern

// Throws quern::Error when `condition` is false. The message is joined only in that case.
#define QUERN_CHECK(condition, ...)             \
  do {                                          \
    if (!(condition)) [[unlikely]]              \
      ::quern::fail(::quern::cat(__VA_ARGS__)); \
  } while (false)
