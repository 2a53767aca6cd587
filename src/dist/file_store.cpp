#include "dist/file_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
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
      : Store(options.address, options.limit),
        folder_(options.address.substr(5)),
        own_(options.own_folder) {
    make_folder();
  }
  ~FileStore() override {
    std::error_code ignored;
    if (remade_) fs::remove_all(folder_, ignored);
  }

  void put(const std::string& key, const std::string& value, milliseconds limit) override {
    check_store_entry(address(), key, value);
    if (own_ && mkdir(folder_.c_str(), 0700) == 0) remade_ = true;
    if (const auto old = read(key)) {
      if (*old == value) return;
      throw CommunicationError(cat(address(), ": set of '", key,
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
    if (file && ::link(temporary.c_str(), path(key).c_str()) == 0) {
      fs::remove(temporary, error);
      return;
    }
    if (file && errno == EEXIST) {  // another process was faster
      fs::remove(temporary, error);
      return put(key, value, limit);
    }
    if (file) fs::rename(temporary, path(key), error);  // a file system without links
    if (!file || error) {
      const std::string reason = error ? error.message() : std::strerror(errno);
      fs::remove(temporary, error);
      throw CommunicationError(cat(address(), ": set of '", key, "': ", reason));
    }
  }

  bool ends_here() const override { return remade_; }

  std::optional<std::string> find(const std::string& key, milliseconds limit) override {
    check_store_entry(address(), key, {});
    const Deadline deadline(limit);
    for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(50))) {
      if (auto value = read(key)) return value;
      if (deadline.passed()) return {};
      std::this_thread::sleep_for(std::min(pause, deadline.left()));
    }
  }

 private:
  void make_folder() const {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (fs::is_directory(folder_)) return;
    throw CommunicationError(cat(address(), ": the folder cannot be made: ",
                                 error ? error.message() : "there is a file of this name"));
  }

  fs::path path(const std::string& key) const { return folder_ / file_name(key); }

  std::optional<std::string> read(const std::string& key) const {
    errno = 0;
    std::ifstream file(path(key), std::ios::binary);
    if (!file && errno == ENOENT) return {};
    std::string value(kMostValueBytes, '\0');
    file.read(value.data(), static_cast<std::streamsize>(value.size()));
    if (!file.is_open() || file.bad()) {
      throw CommunicationError(cat(address(), ": read of '", key, "': ", std::strerror(errno)));
    }
    value.resize(static_cast<size_t>(file.gcount()));
    return value;
  }

  fs::path folder_;
  bool own_;
  std::atomic<bool> remade_ = false;  // by this rank, after another had removed it
  std::atomic<int> written_{0};
};

}  // namespace

std::unique_ptr<Store> open_file_store(const StoreOptions& options) {
  return std::make_unique<FileStore>(options);
}

}  // namespace quern
