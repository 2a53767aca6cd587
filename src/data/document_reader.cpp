#include "data/document_reader.h"

#include <algorithm>

#include "base/error.h"
#include "io/python_line.h"
#include "io/utf8.h"

namespace quern {

namespace {

constexpr size_t kHead = 4096;  // bytes examined to detect text

// The reason why a file that begins with `head` is not UTF-8 text: "is a zip file". Empty: it may
// be text.
std::string why_not_text(const std::filesystem::path& path, std::string_view head) {
  const std::string columns = why_not_columns(path, head);
  if (!columns.empty()) return columns;
  constexpr std::pair<std::string_view, const char*> kKinds[] = {
      {"PK\x03\x04", "is a zip file"},     {"\xFD\x37zXZ", "is an xz file"},
      {"\x1F\x8B", "is compressed twice"}, {"\x28\xB5\x2F\xFD", "is compressed twice"},
      {"\xFF\xFE", "is UTF-16 text"},      {"\xFE\xFF", "is UTF-16 text"}};
  for (const auto& [begin, kind] : kKinds) {
    if (head.starts_with(begin)) return kind;
  }
  const bool bzip2 = head.starts_with("BZh") && head.size() >= 6 && head.substr(4, 2) == "1A";
  if (bzip2) return "is a bzip2 file";
  const size_t zero = head.find('\0');
  if (zero != std::string_view::npos) return cat("is not text (byte ", zero, " is 0)");
  return "";
}

// A sliding window over a stream.
class TextWindow {
 public:
  // Skips to byte `offset` of the stream, which must be at its start.
  TextWindow(std::unique_ptr<ByteStream> stream, int64_t offset)
      : stream_(std::move(stream)), offset_(offset) {
    const int64_t skipped = stream_->skip(offset);
    QUERN_CHECK(skipped == offset, "a source ends at byte ", skipped, " of its text, expected ",
                offset, " or more: it has changed");
  }

  std::string_view text() const { return std::string_view(buffer_).substr(head_); }
  int64_t offset() const { return offset_; }  // of text()[0] in the stream
  bool at_end() const { return at_end_; }     // the stream ends with text()

  // Reads `bytes` more, or to the end of the stream; then at_end() is true.
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

  void consume(size_t bytes) {
    head_ += bytes;
    offset_ += static_cast<int64_t>(bytes);
  }

  // At the start of a file: drops a byte order mark. Returns false when the file is not text, with
  // the reason in `block`.
  bool begin_file(const std::filesystem::path& path, TextBlock& block) {
    while (text().size() < kHead && !at_end_) fill();
    const std::string what = why_not_text(path, text().substr(0, kHead));
    if (!what.empty()) {
      block.bad.push_back({BadInput::Kind::not_text, 0, 0, cat("expected text, but it ", what)});
      drop_rest();
    } else if (text().starts_with(kByteOrderMark)) {
      consume(kByteOrderMark.size());
    }
    return what.empty();
  }

 private:
  // Reads to the end of the stream, so that the file's observer sees all of it.
  void drop_rest() {
    consume(text().size());
    while (!at_end_) {
      fill();
      consume(text().size());
    }
  }

  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t head_ = 0;
  int64_t offset_;
  bool at_end_ = false;
};

// Reads one document, or several between separator lines.
class TextReader : public DocumentReader {
 public:
  TextReader(std::unique_ptr<ByteStream> stream, PieceCutter& cutter, ReadPosition from,
             DocumentReaderOptions options)
      : window_(std::move(stream), from.offset),
        cutter_(cutter),
        options_(std::move(options)),
        in_document_(from.in_document),
        in_line_(from.in_line),
        scanned_(from.offset) {}

  bool next(TextBlock& block) override {
    block = {};
    block.begin = position();
    if (window_.offset() == 0 && !window_.begin_file(options_.path, block)) {
      block.end = position();
      return true;
    }
    while (block.text.size() < options_.block) {
      const Extent extent = find_document_end();
      if (!extent.ends && extent.size < cutter_.lookahead()) {
        window_.fill();
      } else if (extent.size > 0) {
        append_piece(extent, block);
      } else if (extent.separator > 0) {
        consume(extent.separator);
      } else if (window_.text().empty()) {
        break;  // end of file
      } else {
        options_.cut_at.reset();  // the cut falls on the end of a document
      }
    }
    block.end = position();
    return !block.parts.empty() || block.end != block.begin;
  }

 private:
  // The extent of the first document in the window.
  struct Extent {
    size_t size = 0;
    bool ends = false;     // the window has its end
    size_t separator = 0;  // bytes of the separator line behind it
  };

  ReadPosition position() const { return {window_.offset(), 1, in_document_, in_line_}; }

  bool is_separator(std::string_view line) const {
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (options_.split_on != "blank") return line == options_.split_on;
    return line.find_first_not_of(" \t") == std::string_view::npos;
  }
  // True when a line that begins with `begun` may become a separator.
  bool may_be_separator(std::string_view begun) const {
    if (options_.split_on == "blank") {
      return begun.find_first_not_of(" \t\r") == std::string_view::npos;
    }
    return begun.size() <= options_.split_on.size() + 1;
  }

  Extent find_document_end() {
    std::string_view text = window_.text();
    bool all = window_.at_end();
    if (options_.cut_at && *options_.cut_at >= window_.offset()) {
      const auto limit = static_cast<size_t>(*options_.cut_at - window_.offset());
      all = all || limit <= text.size();
      text = text.substr(0, limit);
    }
    if (options_.split_on.empty()) return {text.size(), all, 0};
    scanned_ = std::max(scanned_, window_.offset());
    auto line = static_cast<size_t>(scanned_ - window_.offset());
    while (line < text.size()) {
      const size_t feed = text.find('\n', line);
      const bool inside = line == 0 && in_line_;  // the window begins within this line
      if (feed == std::string_view::npos && !all) {
        const bool open = !inside && may_be_separator(text.substr(line));
        return {open ? line : text.size(), false, 0};
      }
      const size_t end = feed == std::string_view::npos ? text.size() : feed + 1;
      if (!inside && is_separator(text.substr(line, end - line))) return {line, true, end - line};
      line = end;
      scanned_ = window_.offset() + static_cast<int64_t>(line);
    }
    return {text.size(), all, 0};
  }

  void append_piece(const Extent& extent, TextBlock& block) {
    const std::string_view document = window_.text().substr(0, extent.size);
    const Piece piece = cutter_.next(document, extent.ends);
    block.parts.push_back({block.text.size(), piece.size, !in_document_, piece.last});
    block.text += document.substr(0, piece.size);
    in_document_ = !piece.last;
    consume(piece.size + piece.gap);
    if (piece.last) consume(extent.separator);
  }

  void consume(size_t bytes) {
    if (bytes == 0) return;
    in_line_ = in_document_ && window_.text()[bytes - 1] != '\n';
    window_.consume(bytes);
  }

  TextWindow window_;
  PieceCutter& cutter_;
  DocumentReaderOptions options_;
  bool in_document_, in_line_;
  int64_t scanned_;  // lines that begin before this byte are not separators
};

// Reads blocks of whole lines without parsing them.
class JsonLinesReader : public DocumentReader {
 public:
  JsonLinesReader(std::unique_ptr<ByteStream> stream, ReadPosition from,
                  DocumentReaderOptions options)
      : window_(std::move(stream), from.offset), options_(std::move(options)), line_(from.line) {}

  bool next(TextBlock& block) override {
    block = {};
    block.begin = position();
    if (window_.offset() > 0 || window_.begin_file(options_.path, block)) take_lines(block);
    block.end = position();
    return !block.bad.empty() || block.end != block.begin;
  }

 private:
  ReadPosition position() const { return {window_.offset(), line_, false, false}; }

  void take_lines(TextBlock& block) {
    block.begin = position();  // behind a byte order mark
    while (window_.text().size() < options_.block && !window_.at_end()) window_.fill();
    if (window_.text().empty()) return;  // end of file
    size_t end = last_line_end();
    while (end == 0 && !window_.at_end() && window_.text().size() <= options_.longest_line) {
      window_.fill(std::max(window_.text().size(), options_.block));
      end = first_line_end();
    }
    if (end == 0) end = first_line_end();
    if (end == 0 && window_.at_end()) end = window_.text().size();
    if (end == 0 || end > std::max(options_.longest_line, options_.block)) {
      block.bad.push_back({BadInput::Kind::too_long, line_, 0,
                           cat("is longer than ", options_.longest_line, " bytes, expected less")});
      drop_line();
      return;
    }
    block.text = window_.text().substr(0, end);
    window_.consume(end);
    line_ += std::count(block.text.begin(), block.text.end(), '\n');
  }

  // The position behind the last line feed of a block, or behind the first of the window; 0: none.
  // (npos + 1 is 0.)
  size_t last_line_end() const { return window_.text().substr(0, options_.block).rfind('\n') + 1; }
  size_t first_line_end() const { return window_.text().find('\n') + 1; }

  void drop_line() {
    ++line_;
    size_t end = first_line_end();
    while (end == 0 && !window_.at_end()) {
      window_.consume(window_.text().size());
      window_.fill();
      end = first_line_end();
    }
    window_.consume(end == 0 ? window_.text().size() : end);
  }

  TextWindow window_;
  DocumentReaderOptions options_;
  int64_t line_;
};

}  // namespace

std::unique_ptr<DocumentReader> read_text_documents(std::unique_ptr<ByteStream> stream,
                                                    PieceCutter& cutter, ReadPosition from,
                                                    const DocumentReaderOptions& options) {
  return std::make_unique<TextReader>(std::move(stream), cutter, from, options);
}

std::unique_ptr<DocumentReader> read_json_lines(std::unique_ptr<ByteStream> stream,
                                                ReadPosition from,
                                                const DocumentReaderOptions& options) {
  return std::make_unique<JsonLinesReader>(std::move(stream), from, options);
}

void check_is_text(const std::filesystem::path& path) {
  std::string head(kHead, '\0');
  head.resize(open_byte_stream(path)->read(head.data(), head.size()));
  const std::string why = why_not_text(path, head);
  QUERN_CHECK(why.empty(), path.string(), ": expected text, but it ", why);
}

int64_t line_at_fraction(const std::filesystem::path& path, double fraction) {
  const int64_t size = open_byte_stream(path)->skip(INT64_MAX);
  const auto target = static_cast<int64_t>(static_cast<double>(size) * fraction);
  TextWindow window(open_byte_stream(path), target);
  window.fill(size_t{1} << 20);
  const std::string_view text = window.text();
  size_t at = text.find('\n');
  if (at != std::string_view::npos && target + static_cast<int64_t>(at) + 1 < size) {
    ++at;
  } else {
    at = 0;
    while (at < text.size() && continues_utf8(text[at])) ++at;
  }
  return target + static_cast<int64_t>(at);
}

}  // namespace quern
