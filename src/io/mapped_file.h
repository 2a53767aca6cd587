// A memory-mapped file: read-only, paged in on demand, shared between processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace quern {

class MappedFile {
 public:
  // Throws naming the path when it is missing, not a regular file, or not readable.
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile() = default;

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace quern
