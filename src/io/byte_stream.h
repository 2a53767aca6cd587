// Files read from front to back, decompressed on the way. Memory does not depend on their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

namespace quern {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Reads up to `size` bytes, at least one before the end; 0: the end. Throws naming the file, the
  // byte of the file as it lies on the disk, and what is wrong there.
  virtual size_t read(char* out, size_t size) = 0;
  // Drops `count` bytes, or what is left of them; returns how many there were.
  virtual int64_t skip(int64_t count);
};

enum class Compression { none, gzip, zstd };

// By the file's first bytes. Throws when the name ends in .gz or .zst and the content is another.
Compression compression_of(const std::filesystem::path& path);

// Sees the file as it lies on the disk, in order: for checksums and progress.
using RawObserver = std::function<void(std::span<const std::byte> bytes)>;

// gzip (RFC 1952): all members of the file, one after the other; zeros after the last are padding.
// zstd (RFC 8878): all frames, windows of up to 128 MiB. The CRCs and checksums in them are
// checked.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path,
                                             RawObserver observer = {});

}  // namespace quern
