// The lines of text files as a tokenizer learns from them: valid UTF-8 without control characters,
// of bounded length.
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

// The text that a line of a file holds, of JSONL for example; may throw what is wrong with it.
using LineText = std::function<void(int64_t number, std::string_view line, std::string& text)>;
// How a file's lines are to be read; null: they are the text.
using LineTextOf = std::function<LineText(const std::filesystem::path& file)>;

class TextLines {
 public:
  static constexpr size_t kLongest =
      4096;  // bytes; longer ones are cut, before a space if possible

  explicit TextLines(std::vector<std::filesystem::path> files, LineTextOf line_text_of = {})
      : files_(std::move(files)), line_text_of_(std::move(line_text_of)) {}

  // The next one that is not empty; false: there are no more. Throws as ByteStream::read does.
  bool next(std::string& line);
  // The part of the files, by their number, that has been read whole.
  double files_done() const;

 private:
  bool fill();  // reads on, into the next file if need be; false: there is no more
  void open_file();
  void take_lines();  // from encoded_ to buffer_
  void take_line(std::string_view line);
  size_t cut_long(std::string_view rest) const;

  std::vector<std::filesystem::path> files_;
  size_t file_ = 0;
  std::unique_ptr<ByteStream> stream_;
  LineTextOf line_text_of_;
  LineText line_text_;          // of this file
  std::string encoded_, text_;  // lines that are not text themselves, and the text of one
  int64_t line_ = 0;            // its number
  std::string buffer_;          // text that has been read
  size_t begin_ = 0;            // and not been given
};

}  // namespace quern
