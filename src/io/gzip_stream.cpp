// gzip (RFC 1952) through zlib.
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "io/raw_file.h"

namespace quern {

namespace {

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
  // Goes to the next member when one has ended; false: that was the last.
  bool begin_member() {
    if (inside_) return true;
    bool padding = false;
    while (input_.more() && *input_.data() == 0) {
      input_.consume(1);
      padding = true;
    }
    if (!input_.more()) return false;
    if (padding || *input_.data() != '\x1F') {
      input_.refuse("something that is no gzip data follows");
    }
    inflateReset(&zlib_);
    return inside_ = true;
  }

  void inflate_some() {
    if (!input_.more()) input_.refuse("gzip data is cut off");
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));
    zlib_.avail_in = static_cast<uInt>(input_.size());
    const int code = inflate(&zlib_, Z_NO_FLUSH);
    input_.consume(input_.size() - zlib_.avail_in);
    if (code == Z_STREAM_END) {
      inside_ = false;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // the latter: no progress yet
      input_.refuse(cat("gzip data is damaged (", zlib_.msg ? zlib_.msg : zError(code), ")"));
    }
  }

  RawBuffer input_;
  z_stream zlib_{};
  bool inside_ = true;  // a member
};

}  // namespace

std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<RawFile> file) {
  return std::make_unique<GzipStream>(std::move(file));
}

}  // namespace quern
