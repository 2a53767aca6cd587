// A file's bytes as they lie on the disk, for the streams of byte_stream.h.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/byte_stream.h"

namespace quern {

class RawFile : public ByteStream {
 public:
  RawFile(std::filesystem::path path, RawObserver observer);
  ~RawFile() override;
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  size_t read(char* out, size_t size) override;
  int64_t skip(int64_t count) override;       // reads nothing when there is no observer
  int64_t offset() const { return offset_; }  // bytes read so far
  // Throws "PATH: WHAT at byte OFFSET".
  [[noreturn]] void refuse(const std::string& what, int64_t offset) const;

 private:
  std::filesystem::path path_;
  RawObserver observer_;
  int fd_;
  int64_t offset_ = 0;
};

// What a decompressor takes its input from: a buffer in front of the file.
class RawBuffer {
 public:
  explicit RawBuffer(std::unique_ptr<RawFile> file) : file_(std::move(file)), buffer_(1 << 18) {}

  // Whether a byte is left; reads on when the buffer is used up.
  bool more();
  const char* data() const { return buffer_.data() + begin_; }
  size_t size() const { return end_ - begin_; }
  void consume(size_t bytes) { begin_ += bytes; }
  // Throws naming the file and the place of the first byte that was not consumed.
  [[noreturn]] void refuse(const std::string& what) const {
    file_->refuse(what, file_->offset() - static_cast<int64_t>(size()));
  }

 private:
  std::unique_ptr<RawFile> file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
};

std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<RawFile> file);
std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<RawFile> file);

}  // namespace quern
