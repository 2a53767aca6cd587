// Lines of text files for training a tokenizer: valid UTF-8 without control characters, of bounded
// length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/byte_stream.h"

namespace quern {

// Extracts the text of a line, for example of JSONL; may throw.
using LineText = std::function<void(int64_t number, std::string_view line, std::string& text)>;
// Returns the extractor for a file; null: the lines themselves are the text.
using LineTextOf = std::function<LineText(const std::filesystem::path& file)>;

class TextLines {
 public:
  static constexpr size_t kLongest = 4096;  // bytes; longer lines are cut, if possible at a space

  explicit TextLines(std::vector<std::filesystem::path> files, LineTextOf line_text_of = {})
      : files_(std::move(files)), line_text_of_(std::move(line_text_of)) {}

  // Gets the next non-empty line; false at the end. Throws as ByteStream::read does.
  bool next(std::string& line);
  // The fraction of the files, by count, that is read to the end.
  double files_done() const;

 private:
  bool fill();  // reads more, from the next file if needed; false at the end
  void open_file();
  void take_lines();  // from encoded_ to buffer_
  void take_line(std::string_view line);
  size_t cut_long(std::string_view rest) const;

  std::vector<std::filesystem::path> files_;
  size_t file_ = 0;
  std::unique_ptr<ByteStream> stream_;
  LineTextOf line_text_of_;
  LineText line_text_;          // of this file
  std::string encoded_, text_;  // raw lines for the extractor, and the text of one
  int64_t line_ = 0;            // its number
  std::string buffer_;          // text read
  size_t begin_ = 0;            // start of the text not yet returned
};

}  // namespace quern
