#include "io/text_lines.h"

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

constexpr size_t kBlock = size_t{1} << 18;
constexpr size_t kLongestEncoded = size_t{1} << 26;

// A control character ends a line. Encoding turns it into a byte token, so training learns nothing
// from it, and SentencePiece's trainer drops lines with a tab or NUL.
bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20;
}

}  // namespace

double TextLines::files_done() const {
  return files_.empty() ? 1.0 : static_cast<double>(file_) / static_cast<double>(files_.size());
}

bool TextLines::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  if (file_ == files_.size()) return false;
  if (!stream_) open_file();
  std::string& to = line_text_ ? encoded_ : buffer_;
  const size_t before = to.size();
  to.resize(before + kBlock);
  const size_t count = stream_->read(to.data() + before, kBlock);
  to.resize(before + count);
  if (count == 0) {
    if (!encoded_.empty()) take_line(encoded_);
    encoded_.clear();
    buffer_ += '\n';  // a line does not continue in the next file
    stream_.reset();
    ++file_;
  } else if (line_text_) {
    take_lines();
  }
  return true;
}

void TextLines::open_file() {
  stream_ = open_byte_stream(files_[file_]);
  line_text_ = line_text_of_ ? line_text_of_(files_[file_]) : LineText();
  line_ = 0;
}

void TextLines::take_lines() {
  size_t begin = 0;
  for (size_t end; (end = encoded_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take_line(std::string_view(encoded_).substr(begin, end - begin));
  }
  encoded_.erase(0, begin);
  QUERN_CHECK(encoded_.size() <= kLongestEncoded, files_[file_].string(), ": line ", line_ + 1,
              " is longer than ", kLongestEncoded, " bytes");
}

void TextLines::take_line(std::string_view line) {
  ++line_;
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  line_text_(line_, line, text_);
  buffer_ += text_;
  buffer_ += '\n';
}

// Cuts before the last space in the second half of kLongest bytes, else after a whole character.
size_t TextLines::cut_long(std::string_view rest) const {
  const std::string_view most = rest.substr(0, kLongest);
  const size_t space = most.rfind(' ');
  if (space != std::string_view::npos && space > kLongest / 2) return space;
  return kLongest - unfinished_utf8_suffix(most);
}

bool TextLines::next(std::string& line) {
  for (size_t end = begin_;;) {
    while (end < buffer_.size() && !is_control(buffer_[end]) && end - begin_ < kLongest) ++end;
    if (end == buffer_.size()) {
      end -= begin_;
      if (!fill()) return false;
      continue;
    }
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const bool too_long = end - begin_ == kLongest;
    const size_t size = too_long ? cut_long(rest) : end - begin_;
    line.clear();
    split_utf8(
        rest.substr(0, size), [&](std::string_view valid) { line += valid; },
        [](std::string_view) {});
    begin_ += size + (too_long ? 0 : 1);
    end = begin_;
    if (!line.empty()) return true;
  }
}

}  // namespace quern
