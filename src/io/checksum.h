// XXH3-64 (xxHash): detects flipped bits and truncated files at memory speed. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace quern
