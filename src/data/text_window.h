// The part of a stream that a document reader looks at.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/byte_stream.h"

namespace quern {

class TextWindow {
 public:
  // Begins at byte `offset` of the stream, which stands at its first.
  TextWindow(std::unique_ptr<ByteStream> stream, int64_t offset)
      : stream_(std::move(stream)), offset_(offset) {
    const int64_t skipped = stream_->skip(offset);
    QUERN_CHECK(skipped == offset, "a source ends at byte ", skipped, " of its text, expected ",
                offset, " or more: it has changed");
  }

  std::string_view text() const { return std::string_view(buffer_).substr(head_); }
  int64_t offset() const { return offset_; }  // of text()[0] in the stream
  bool at_end() const { return at_end_; }     // nothing comes after text()

  // Reads on, about `bytes` more; after the last ones at_end().
  void fill(size_t bytes = size_t{1} << 18) {
    buffer_.erase(0, head_);
    head_ = 0;
    size_t size = buffer_.size();
    const size_t wanted = size + bytes;
    buffer_.resize(wanted);
    while (size < wanted && !at_end_) {
      const size_t n = stream_->read(buffer_.data() + size, wanted - size);
      at_end_ = n == 0;
      size += n;
    }
    buffer_.resize(size);
  }

  // To the end of the stream: all of it is seen by an observer of the file.
  void drop_rest() {
    consume(text().size());
    while (!at_end_) {
      fill();
      consume(text().size());
    }
  }

  void consume(size_t bytes) {
    head_ += bytes;
    offset_ += static_cast<int64_t>(bytes);
  }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t head_ = 0;
  int64_t offset_;
  bool at_end_ = false;
};

}  // namespace quern
