// quern: runs the command, and turns exceptions into messages and exit codes.
#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/slow_path.h"
#include "commands.h"
#include "dist/communicator.h"
#include "io/json_file.h"
#include "io/utf8.h"
#include "supervisor.h"
#include "terminal.h"

namespace {

constexpr int kFailure = 1, kUsage = 2;
// A rank that others have left, or that follows another's error, ends later by this: torchrun and
// others that started them name the first one to end.
constexpr std::chrono::milliseconds kAfterTheCause{200};
constexpr const char* kOutOfMemory =
    "out of memory: the model, batch or data is too large for this machine";

// Does not throw when the message cannot be written.
int report(std::string_view message, int code) {
  std::fflush(stdout);
  quern::print_error(message);
  return code;
}

// Opens the standard descriptors that are closed, so that no file of the program gets their
// numbers. Standard output then fails on each write, which is reported.
void keep_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) _exit(kFailure);
  }
}

// A mapped file that another program cut short raises SIGBUS when its lost part is read.
extern "C" void report_lost_file(int) {
  constexpr std::string_view kMessage =
      "quern: a file was cut short by another program, or its disk failed, while it was read\n";
  if (::write(STDERR_FILENO, kMessage.data(), kMessage.size()) < 0) _exit(kFailure);
  _exit(kFailure);
}

// spdlog's flag %*: the message without control characters.
class PrintableText : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text =
        quern::printable_utf8({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableText>();
  }
};

void start_log() {
  const char* no_color = std::getenv("NO_COLOR");
  spdlog::set_default_logger(spdlog::stderr_color_mt(
      "quern", no_color && *no_color ? spdlog::color_mode::never : spdlog::color_mode::automatic));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableText>('*').set_pattern("%^quern: %l:%$ %*");  // quern: warning: text
  spdlog::set_formatter(std::move(formatter));
  quern::handle_slow_paths([](const std::string& text) { spdlog::warn("{}", text); });
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  start_log();
  std::signal(SIGBUS, report_lost_file);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past the size limit is an error that names the file
  try {
    const int code = quern::run_program({argv + 1, argv + argc});
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout);
    if (lost && code == 0) return report("cannot write to standard output", kFailure);
    return code;
  } catch (const quern::UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const quern::OwnCommunicationError& error) {
    return report(error.what(), kFailure);
  } catch (const quern::CommunicationError& error) {
    report(error.what(), kFailure);
    std::this_thread::sleep_for(kAfterTheCause);
    return quern::code_of_follower();
  } catch (const std::bad_alloc&) {
    return report(kOutOfMemory, kFailure);
  } catch (const std::length_error&) {
    return report(kOutOfMemory, kFailure);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(quern::cat(error.path1().string(), ": ", error.code().message()), kFailure);
  } catch (const nlohmann::json::exception& error) {
    return report(quern::cat("JSON: ", quern::json_reason(error.what())), kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}
