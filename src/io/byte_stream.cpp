#include "io/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/descriptor.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWhole = "a whole file: copy or download it again";

// The bytes of a file on disk, still compressed.
class RawFile : public ByteStream {
 public:
  RawFile(fs::path path, RawObserver observer)
      : path_(std::move(path)), observer_(std::move(observer)), file_(path_, O_RDONLY) {
    if (!file_) fail_with_errno(path_, "cannot be opened");
    // A hint: its failure means nothing.
    ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  size_t read(char* out, size_t size) override {
    const ssize_t n = retried([&] { return ::read(file_.get(), out, size); });
    if (n < 0) refuse(cat("cannot be read: ", std::strerror(errno)), offset_);
    offset_ += n;
    if (observer_) observer_(std::as_bytes(std::span(out, static_cast<size_t>(n))));
    return static_cast<size_t>(n);
  }

  // Without an observer, seeks in regular files instead of reading.
  int64_t skip(int64_t count) override {
    struct stat status {};
    const bool seekable =
        !observer_ && ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode);
    if (!seekable) return ByteStream::skip(count);
    const int64_t there = std::clamp<int64_t>(status.st_size - offset_, 0, count);
    if (::lseek(file_.get(), offset_ + there, SEEK_SET) < 0) refuse("cannot be read", offset_);
    offset_ += there;
    return there;
  }

  int64_t offset() const { return offset_; }  // bytes read so far
  // Throws "PATH: WHAT at byte OFFSET, EXPECTED".
  [[noreturn]] void refuse(const std::string& what, int64_t offset,
                           const std::string& expected = "") const {
    fail(cat(path_.string(), ": ", what, " at byte ", offset, expected));
  }

 private:
  fs::path path_;
  RawObserver observer_;
  Descriptor file_;
  int64_t offset_ = 0;
};

// The input of a decompressor: a buffer in front of the file.
class RawBuffer {
 public:
  explicit RawBuffer(std::unique_ptr<RawFile> file) : file_(std::move(file)), buffer_(1 << 18) {}

  // True when a byte is left; refills an empty buffer.
  bool more() {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = file_->read(buffer_.data(), buffer_.size());
    }
    return begin_ < end_;
  }
  const char* data() const { return buffer_.data() + begin_; }
  size_t size() const { return end_ - begin_; }
  void consume(size_t bytes) { begin_ += bytes; }
  // Throws naming the file and the offset of the first unconsumed byte.
  [[noreturn]] void refuse(const std::string& what, const std::string& expected) const {
    file_->refuse(what, file_->offset() - static_cast<int64_t>(size()),
                  cat(", expected ", expected));
  }

 private:
  std::unique_ptr<RawFile> file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<RawFile> file) : input_(std::move(file)) {
    constexpr int kGzipHeader = 16;
    QUERN_CHECK(inflateInit2(&zlib_, MAX_WBITS + kGzipHeader) == Z_OK,
                "zlib cannot be started: out of memory");
  }
  ~GzipStream() override { inflateEnd(&zlib_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t read(char* out, size_t size) override {
    const size_t most = std::min<size_t>(size, std::numeric_limits<uInt>::max());
    zlib_.next_out = reinterpret_cast<Bytef*>(out);
    zlib_.avail_out = static_cast<uInt>(most);
    while (zlib_.avail_out == most && begin_member()) inflate_some();
    return most - zlib_.avail_out;
  }

 private:
  // Starts the next member after the end of one; false after the last.
  bool begin_member() {
    if (inside_) return true;
    bool padding = false;
    while (input_.more() && *input_.data() == 0) {
      input_.consume(1);
      padding = true;
    }
    if (!input_.more()) return false;
    if (padding || *input_.data() != '\x1F') {
      input_.refuse("trailing data is not gzip", "another gzip member or the file's end");
    }
    inflateReset(&zlib_);
    return inside_ = true;
  }

  void inflate_some() {
    if (!input_.more()) input_.refuse("gzip data is cut off", kWhole);
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));
    zlib_.avail_in = static_cast<uInt>(input_.size());
    const int code = inflate(&zlib_, Z_NO_FLUSH);
    input_.consume(input_.size() - zlib_.avail_in);
    if (code == Z_STREAM_END) {
      inside_ = false;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: no progress yet
      input_.refuse(cat("gzip data is damaged (", zlib_.msg ? zlib_.msg : zError(code), ")"),
                    kWhole);
    }
  }

  RawBuffer input_;
  z_stream zlib_{};
  bool inside_ = true;  // within a member
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<RawFile> file)
      : input_(std::move(file)), zstd_(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    QUERN_CHECK(zstd_, "zstd cannot be started: out of memory");
  }

  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer output{out, size, 0};
    while (output.pos == 0) {
      const bool more = input_.more();
      if (!more && !inside_) break;
      ZSTD_inBuffer bytes{input_.data(), input_.size(), 0};
      const size_t code = ZSTD_decompressStream(zstd_.get(), &output, &bytes);
      input_.consume(bytes.pos);
      if (ZSTD_isError(code)) {
        input_.refuse(cat("zstd data is damaged (", ZSTD_getErrorName(code), ")"), kWhole);
      }
      inside_ = code != 0;
      // Without input, the decoder can only flush its buffer.
      if (!more && inside_ && output.pos == 0) input_.refuse("zstd data is cut off", kWhole);
    }
    return output.pos;
  }

 private:
  RawBuffer input_;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> zstd_;
  bool inside_ = true;  // within a frame
};

// " 1f 8b" for two bytes.
std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format(" {:02x}", static_cast<unsigned char>(c));
  return text;
}

enum class Compression { none, gzip, zstd };

// Detects the compression from the first bytes. Throws when they contradict .gz, .zst or .zstd.
Compression compression_of(const fs::path& path) {
  std::array<char, 4> bytes{};
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_with_errno(path, "cannot be opened");
  file.read(bytes.data(), bytes.size());
  const std::string_view head(bytes.data(), static_cast<size_t>(file.gcount()));
  const bool skippable_frame = head.size() == 4 && (head[0] & 0xF0) == 0x50 &&
                               head.substr(1) == std::string_view("\x2A\x4D\x18", 3);
  Compression compression = Compression::none;
  if (head.starts_with("\x1F\x8B")) compression = Compression::gzip;
  if (head == "\x28\xB5\x2F\xFD" || skippable_frame) compression = Compression::zstd;

  const std::string extension = path.extension().string();
  const auto check_named = [&](Compression named, const char* format) {
    QUERN_CHECK(compression == named, path.string(), ": is named ", extension, ", but ",
                head.empty() ? "is empty" : cat("begins with bytes", hex_of(head)), ", expected a ",
                format, " file");
  };
  if (extension == ".gz") check_named(Compression::gzip, "gzip");
  if (extension == ".zst" || extension == ".zstd") check_named(Compression::zstd, "zstd");
  return compression;
}

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path, RawObserver observer) {
  const Compression compression = compression_of(path);
  auto file = std::make_unique<RawFile>(path, std::move(observer));
  switch (compression) {
    case Compression::none: return file;
    case Compression::gzip: return std::make_unique<GzipStream>(std::move(file));
    case Compression::zstd: return std::make_unique<ZstdStream>(std::move(file));
  }
  fail("unknown compression");
}

int64_t ByteStream::skip(int64_t count) {
  std::array<char, 1 << 16> dropped;
  int64_t done = 0;
  while (done < count) {
    const auto rest = static_cast<size_t>(count - done);
    const size_t n = read(dropped.data(), std::min(dropped.size(), rest));
    if (n == 0) break;
    done += static_cast<int64_t>(n);
  }
  return done;
}

}  // namespace quern
