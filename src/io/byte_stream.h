// Sequential file reading with decompression. Memory does not depend on the file size.
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
  // Reads up to `size` bytes, at least one before the end; returns 0 at the end. Errors name the
  // file, the offset in the file on disk, and the reason.
  virtual size_t read(char* out, size_t size) = 0;
  // Skips up to `count` bytes; returns the number of bytes skipped.
  virtual int64_t skip(int64_t count);
};

// Receives the bytes on disk in order, for checksums and progress.
using RawObserver = std::function<void(std::span<const std::byte> bytes)>;

// gzip (RFC 1952): all members of the file in order; zeros after the last are padding.
// zstd (RFC 8878): all frames, windows of up to 128 MiB. CRCs and checksums are verified. The first
// bytes decide; throws when they contradict .gz, .zst or .zstd.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path,
                                             RawObserver observer = {});

}  // namespace quern
