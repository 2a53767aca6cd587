// Reads documents from a stream of text in blocks of bounded size, which are tokenized separately.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/byte_stream.h"
#include "text/piece_cutter.h"

namespace quern {

// A reader's position between two blocks. A new reader that starts there gives the same blocks.
struct ReadPosition {
  int64_t offset = 0;        // in the text, after decompression
  int64_t line = 1;          // JSONL: number of the next line
  bool in_document = false;  // text: the last piece did not end its document
  bool in_line = false;      // text: the last piece did not end its line

  friend bool operator==(const ReadPosition&, const ReadPosition&) = default;
};

// A document or a piece of one.
struct DocumentPart {
  size_t begin = 0, size = 0;  // in TextBlock::text
  bool begins = false, ends = false;
};

// Bad input: skipped if the user allows it, otherwise an error.
struct BadInput {
  enum class Kind { not_text, bad_json, no_field, not_a_string, bad_utf8, too_long };
  Kind kind = Kind::bad_json;
  int64_t line = 0, column = 0;  // from 1; 0: the file as a whole. Columns count bytes
  std::string what;              // "field 'text' is 7, expected a string"
};

struct TextBlock {
  std::string text;
  std::vector<DocumentPart> parts;  // of a text file; empty for JSONL, where `text` is whole lines
  std::vector<BadInput> bad;
  ReadPosition begin, end;
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // Reads the next block; false at the end. Throws as ByteStream::read does.
  virtual bool next(TextBlock& block) = 0;
};

struct DocumentReaderOptions {
  std::filesystem::path path;  // for messages
  // Text: the separator line between documents, part of neither; "blank": any line of only spaces
  // and tabs. Empty: a file is one document.
  std::string split_on;
  std::optional<int64_t> cut_at;          // text: a document also ends before this byte
  size_t block = size_t{1} << 18;         // approximate bytes of text in a block
  size_t longest_line = size_t{1} << 26;  // JSONL: longer lines are bad input
};

// Reads any bytes unchanged, except a byte order mark at the start of the file, which is dropped.
// Skips empty documents. `cutter` must outlive the reader.
std::unique_ptr<DocumentReader> read_text_documents(std::unique_ptr<ByteStream> stream,
                                                    PieceCutter& cutter, ReadPosition from,
                                                    const DocumentReaderOptions& options);
// Reads blocks of whole lines.
std::unique_ptr<DocumentReader> read_json_lines(std::unique_ptr<ByteStream> stream,
                                                ReadPosition from,
                                                const DocumentReaderOptions& options);

// Throws when a file does not begin as UTF-8 text does, with the reason ("it is a zip file"), so
// that nothing is trained on archives and images as text.
void check_is_text(const std::filesystem::path& path);

// Offset of the first line that begins after `fraction` of the file's decompressed bytes. Without
// one within 1 MiB: the next character. Reads a compressed file completely.
int64_t line_at_fraction(const std::filesystem::path& path, double fraction);

}  // namespace quern
