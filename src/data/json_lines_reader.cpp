// JSONL files in blocks of whole lines; what the lines hold is not looked at here.
#include <algorithm>

#include "data/document_reader.h"
#include "data/text_window.h"

namespace quern {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kHead = 4096;

class JsonLinesReader : public DocumentReader {
 public:
  JsonLinesReader(std::unique_ptr<ByteStream> stream, ReadPosition from,
                  DocumentReaderOptions options)
      : window_(std::move(stream), from.offset), options_(std::move(options)), line_(from.line) {}

  bool next(TextBlock& block) override {
    block = {};
    block.begin = position();
    if (window_.offset() == 0) begin_file(block);
    if (block.bad.empty()) take_lines(block);
    block.end = position();
    return !block.bad.empty() || block.end != block.begin;
  }

 private:
  ReadPosition position() const { return {window_.offset(), line_, false, false}; }

  void begin_file(TextBlock& block) {
    while (window_.text().size() < kHead && !window_.at_end()) window_.fill();
    const std::string what = why_not_text(options_.path, window_.text().substr(0, kHead));
    if (!what.empty()) {
      block.bad.push_back({BadInput::Kind::not_text, 0, 0, what});
      window_.drop_rest();
    } else if (window_.text().starts_with(kByteOrderMark)) {
      window_.consume(kByteOrderMark.size());
    }
  }

  void take_lines(TextBlock& block) {
    block.begin = position();  // behind a byte order mark
    while (window_.text().size() < options_.block && !window_.at_end()) window_.fill();
    if (window_.text().empty()) return;  // the end of the file
    size_t end = last_line_end();
    while (end == 0 && !window_.at_end() && window_.text().size() <= options_.longest_line) {
      window_.fill(std::max(window_.text().size(), options_.block));
      end = first_line_end();
    }
    if (end == 0) end = first_line_end();
    if (end == 0 && window_.at_end()) end = window_.text().size();
    if (end == 0 || end > std::max(options_.longest_line, options_.block)) {
      block.bad.push_back({BadInput::Kind::too_long, line_, 0,
                           cat("is longer than ", options_.longest_line, " bytes")});
      drop_line();
      return;
    }
    block.text = window_.text().substr(0, end);
    window_.consume(end);
    line_ += std::count(block.text.begin(), block.text.end(), '\n');
  }

  // Behind the last line feed of a block; 0: there is none.
  size_t last_line_end() const {
    const size_t feed = window_.text().substr(0, options_.block).rfind('\n');
    return feed == std::string_view::npos ? 0 : feed + 1;
  }
  size_t first_line_end() const {
    const size_t feed = window_.text().find('\n');
    return feed == std::string_view::npos ? 0 : feed + 1;
  }

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

std::unique_ptr<DocumentReader> read_json_lines(std::unique_ptr<ByteStream> stream,
                                                ReadPosition from,
                                                const DocumentReaderOptions& options) {
  return std::make_unique<JsonLinesReader>(std::move(stream), from, options);
}

}  // namespace quern
