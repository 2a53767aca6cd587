// Documents from a stream of text, in blocks of bounded size that are tokenized independently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/byte_stream.h"
#include "text/piece_cutter.h"

namespace quern {

// Where a reader stands between two blocks: another one goes on there and gives the same.
struct ReadPosition {
  int64_t offset = 0;        // in the text, after decompression
  int64_t line = 1;          // JSONL: of the next line
  bool in_document = false;  // text: the last piece did not end its document
  bool in_line = false;      // text: nor its line

  friend bool operator==(const ReadPosition&, const ReadPosition&) = default;
};

// A document or a piece of one.
struct DocumentPart {
  size_t begin = 0, size = 0;  // in TextBlock::text
  bool begins = false, ends = false;
};

// Input that is left out when the user wants it so.
struct BadInput {
  enum class Kind { not_text, bad_json, no_field, not_a_string, bad_utf8, too_long };
  Kind kind = Kind::bad_json;
  int64_t line = 0, column = 0;  // from 1; 0: the file as a whole. Columns count bytes
  std::string what;              // "field 'text' is 7, expected a string"
};

struct TextBlock {
  std::string text;
  std::vector<DocumentPart> parts;  // of a text file; of JSONL `text` is whole lines
  std::vector<BadInput> bad;
  ReadPosition begin, end;
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False: the file has no more. Throws as ByteStream::read does.
  virtual bool next(TextBlock& block) = 0;
};

struct DocumentReaderOptions {
  std::filesystem::path path;  // for messages
  // Text: a line that is this ends a document and belongs to none; "blank": a line of nothing but
  // spaces and tabs. Empty: a file is one document.
  std::string split_on;
  std::optional<int64_t> cut_at;          // text: a document ends before this byte as well
  size_t block = size_t{1} << 18;         // bytes of text to a block, about
  size_t longest_line = size_t{1} << 26;  // JSONL: longer ones are bad
};

// Text is any bytes, as they are; but a byte order mark at the beginning of the file is dropped.
// Documents without a byte are left out. `cutter` outlives the reader.
std::unique_ptr<DocumentReader> read_text_documents(std::unique_ptr<ByteStream> stream,
                                                    PieceCutter& cutter, ReadPosition from,
                                                    const DocumentReaderOptions& options);
// Blocks of whole lines.
std::unique_ptr<DocumentReader> read_json_lines(std::unique_ptr<ByteStream> stream,
                                                ReadPosition from,
                                                const DocumentReaderOptions& options);

// What a file that begins with `head` is when it is no UTF-8 text: "is a zip file". Empty: it may
// be text.
std::string why_not_text(const std::filesystem::path& path, std::string_view head);

// The first line of the file (decompressed) that begins behind `fraction` of its bytes; when
// there is none within 1 MiB, the first character there. Reads the file if it is compressed.
int64_t line_at_fraction(const std::filesystem::path& path, double fraction);

}  // namespace quern
