// zstd (RFC 8878) through its library.
#include <zstd.h>

#include "base/error.h"
#include "io/raw_file.h"

namespace quern {

namespace {

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
        input_.refuse(cat("zstd data is damaged (", ZSTD_getErrorName(code), ")"));
      }
      inside_ = code != 0;
      // Without input it can only give what it still holds.
      if (!more && inside_ && output.pos == 0) input_.refuse("zstd data is cut off");
    }
    return output.pos;
  }

 private:
  RawBuffer input_;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> zstd_;
  bool inside_ = true;  // a frame
};

}  // namespace

std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<RawFile> file) {
  return std::make_unique<ZstdStream>(std::move(file));
}

}  // namespace quern
