// A memory-mapped file: read-only, paged in on demand, shared between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

struct stat;

namespace quern {

// Copies share the mapping.
class MappedFile {
 public:
  // Throws naming the path when it is missing, not a regular file, or not readable.
  static MappedFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const {
    return {data_.get(), data_ ? static_cast<size_t>(identity_.bytes) : 0};
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
  }

  // Throws when the file was written to or truncated since it was opened: reading the truncated
  // part would end the process (SIGBUS). A replaced or removed file stays intact here.
  void check_unchanged() const;

 private:
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t bytes = 0, changed = 0;  // the last write, in nanoseconds
  };
  MappedFile() = default;
  static Identity identity_of(const struct stat& status);

  std::filesystem::path path_;
  std::shared_ptr<const std::byte> data_;  // null: the file is empty
  Identity identity_;
};

}  // namespace quern
