#include "dist/file_store.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "base/error.h"
#include "dist/deadline.h"
#include "dist/store_entry.h"

namespace quern {

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// One file name for each key: other characters become %XX.
std::string file_name(const std::string& key) {
  std::string name = "key_";
  for (const char c : key) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-';
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    name += plain ? std::string(1, c) : std::string{'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return name;
}

class FileStore final : public Store {
 public:
  explicit FileStore(const StoreOptions& options)
      : address_(options.address), folder_(options.address.substr(5)), limit_(options.limit) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!fs::is_directory(folder_)) {
      throw CommunicationError(cat(address_, ": the folder cannot be made: ",
                                   error ? error.message() : "there is a file of this name"));
    }
  }

  void set(const std::string& key, const std::string& value) override {
    check_store_entry(address_, key, value);
    if (const auto old = read(key)) {
      if (*old == value) return;
      throw CommunicationError(cat(address_, ": set of '", key,
                                   "': it has another value already. Is the folder that of another "
                                   "training, or of an earlier one?"));
    }
    // A reader sees the whole file or none.
    const fs::path temporary =
        folder_ / cat("tmp_", ::getpid(), '_', written_.fetch_add(1), '_', this);
    std::ofstream file(temporary, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    file.close();
    std::error_code error;
    if (file) fs::rename(temporary, path(key), error);
    if (!file || error) {
      const std::string reason = error ? error.message() : std::strerror(errno);
      fs::remove(temporary, error);
      throw CommunicationError(cat(address_, ": set of '", key, "': ", reason));
    }
  }

  std::string get(const std::string& key) override {
    check_store_entry(address_, key, {});
    const Deadline deadline(limit_);
    for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(50))) {
      if (auto value = read(key)) return *value;
      if (deadline.passed()) {
        throw CommunicationError(
            cat(address_, ": get of '", key, "': no rank set it within ", in_words(limit_)));
      }
      std::this_thread::sleep_for(std::min(pause, deadline.left()));
    }
  }

 private:
  fs::path path(const std::string& key) const { return folder_ / file_name(key); }

  std::optional<std::string> read(const std::string& key) const {
    errno = 0;
    std::ifstream file(path(key), std::ios::binary);
    if (!file && errno == ENOENT) return {};
    std::string value{std::istreambuf_iterator<char>(file), {}};
    if (!file) {
      throw CommunicationError(cat(address_, ": read of '", key, "': ", std::strerror(errno)));
    }
    return value;
  }

  std::string address_;
  fs::path folder_;
  milliseconds limit_;
  std::atomic<int> written_{0};
};

}  // namespace

std::unique_ptr<Store> open_file_store(const StoreOptions& options) {
  return std::make_unique<FileStore>(options);
}

}  // namespace quern
