// Cuts long documents into pieces that are tokenized separately. A document of any size then needs
// little memory and uses all cores, and its tokens stay the same.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "text/tokenizer.h"

namespace quern {

struct PieceSizes {
  size_t target = size_t{1} << 16;   // minimum bytes of a piece, except the last
  size_t longest = size_t{1} << 20;  // maximum bytes of a piece
  size_t probe = 512;                // bytes encoded on each side of a border to test it
};

struct Piece {
  size_t size = 0;    // bytes to tokenize
  size_t gap = 0;     // bytes after the piece that belong to none: 0, or 1 for a border's space
  bool last = false;  // of its document
};

// The end of a piece depends only on the document and the sizes, not on how the text was read:
// - Byte tokenizer: after `target` bytes.
// - Other tokenizers: at the first safe border from `target` on. A border lies behind a line feed
//   or before a space that has no other white space next to it. A border is safe if the `probe`
//   bytes before and after it give the same tokens encoded separately as encoded together. The
//   space belongs to the next piece, or to none if only that gives the same tokens
//   (SentencePiece puts a space before each text).
// - If none of the first 64 borders is safe, a rest of at most `longest` bytes is one piece.
//   Otherwise the piece ends behind the first line feed among the borders, or, without one, at the
//   last character boundary within `longest` bytes. Tokens may differ from those of the whole
//   document only at these cuts.
class PieceCutter {
 public:
  explicit PieceCutter(const Tokenizer& tokenizer, PieceSizes sizes = {});

  // Bytes that next() needs, unless the text reaches the document's end.
  size_t lookahead() const { return sizes_.longest + sizes_.probe + 8; }
  // The first piece of `text`, the rest of a document; `complete`: the text reaches its end.
  Piece next(std::string_view text, bool complete);

 private:
  struct Border {
    size_t end = 0, gap = 0;  // of the first safe border; 0: none
    size_t first_line = 0;    // the first unsafe border behind a line feed; 0: none before `end`
  };
  Border find_border(std::string_view text) const;
  // True when text[0, end) and text[begin, ...) give the same tokens separately as together.
  bool safe(std::string_view text, size_t end, size_t begin) const;

  std::unique_ptr<TokenEncoder> encoder_;
  PieceSizes sizes_;
  bool bytes_;
};

}  // namespace quern
