// XXH3-64 (xxHash): detects flipped bits and truncated files at memory speed. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace quern {

// Size and checksum of a file's content.
struct FileDigest {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

FileDigest digest_of(std::span<const std::byte> bytes);
std::string hex(uint64_t checksum);              // 16 lower-case digits
std::string checksum_of(std::string_view text);  // in hex

// The digest of bytes that arrive in pieces.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;

  void add(std::span<const std::byte> bytes);
  FileDigest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Sealed text: its last line is a comment with the checksum of those before it, such as
// "# xxh3 0123456789abcdef". Text without a seal is accepted as it is: written by hand or by an
// earlier version.
std::string sealed(std::string text);  // text ends with a newline

// The text without that line. Throws naming `path` and both checksums when they differ.
std::string unsealed(std::string text, const std::filesystem::path& path);

}  // namespace quern
