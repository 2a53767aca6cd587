// Text files: one document, or several between separating lines.
#include <algorithm>

#include "data/document_reader.h"
#include "data/text_window.h"
#include "io/python_line.h"

namespace quern {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kHead = 4096;  // bytes that tell whether a file is text

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
    if (window_.offset() == 0 && !begin_file(block)) return !block.bad.empty();
    while (block.text.size() < options_.block) {
      const Extent extent = find_document_end();
      if (!extent.ends && extent.size < cutter_.lookahead()) {
        window_.fill();
      } else if (extent.size > 0) {
        append_piece(extent, block);
      } else if (extent.separator > 0) {
        consume(extent.separator);
      } else if (window_.text().empty()) {
        break;  // the end of the file
      } else {
        options_.cut_at.reset();  // reached, right behind a document's end
      }
    }
    block.end = position();
    return !block.parts.empty() || block.end != block.begin;
  }

 private:
  // What the window holds of the document that it begins with.
  struct Extent {
    size_t size = 0;
    bool ends = false;     // it is there to its end
    size_t separator = 0;  // bytes of the separating line behind it
  };

  ReadPosition position() const { return {window_.offset(), 1, in_document_, in_line_}; }

  // False: there is nothing to read in the file, or it is no text.
  bool begin_file(TextBlock& block) {
    while (window_.text().size() < kHead && !window_.at_end()) window_.fill();
    const std::string what = why_not_text(options_.path, window_.text().substr(0, kHead));
    if (!what.empty()) {
      block.bad.push_back({BadInput::Kind::not_text, 0, 0, what});
      window_.drop_rest();
      block.end = position();
      return false;
    }
    if (window_.text().starts_with(kByteOrderMark)) window_.consume(kByteOrderMark.size());
    return true;
  }

  bool is_separator(std::string_view line) const {
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (options_.split_on != "blank") return line == options_.split_on;
    return line.find_first_not_of(" \t") == std::string_view::npos;
  }
  // Whether a line that begins so may become a separating one.
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
  int64_t scanned_;  // lines that begin before this byte are no separators
};

}  // namespace

std::unique_ptr<DocumentReader> read_text_documents(std::unique_ptr<ByteStream> stream,
                                                    PieceCutter& cutter, ReadPosition from,
                                                    const DocumentReaderOptions& options) {
  return std::make_unique<TextReader>(std::move(stream), cutter, from, options);
}

std::string why_not_text(const std::filesystem::path& path, std::string_view head) {
  const std::string columns = why_not_columns(path, head);
  if (!columns.empty()) return columns;
  const auto begins = [&](const char* bytes, size_t size) {
    return head.starts_with(std::string_view(bytes, size));
  };
  if (begins("PK\x03\x04", 4)) return "is a zip file";
  if (begins("\xFD"
             "7zXZ",
             5))
    return "is an xz file";
  if (begins("BZh", 3) && head.substr(4, 2) == "1A") return "is a bzip2 file";
  if (begins("\x1F\x8B", 2) || begins("\x28\xB5\x2F\xFD", 4)) return "is compressed twice";
  if (begins("\xFF\xFE", 2) || begins("\xFE\xFF", 2)) return "is UTF-16 text";
  const size_t zero = head.find('\0');
  if (zero != std::string_view::npos) return cat("is no text (byte ", zero, " is 0)");
  return "";
}

int64_t line_at_fraction(const std::filesystem::path& path, double fraction) {
  const int64_t size = open_byte_stream(path)->skip(INT64_MAX);
  const auto target = static_cast<int64_t>(static_cast<double>(size) * fraction);
  TextWindow window(open_byte_stream(path), target);
  window.fill(size_t{1} << 20);
  const std::string_view text = window.text();
  size_t at = text.find('\n');
  if (at != std::string_view::npos && at + 1 < text.size()) {
    ++at;
  } else {
    at = 0;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  return target + static_cast<int64_t>(at);
}

}  // namespace quern
