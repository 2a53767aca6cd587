// Cuts long documents into pieces that are tokenized one by one, so that a document of any size
// needs little memory and all cores, and gives the tokens of the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quern {

struct PieceSizes {
  size_t target = size_t{1} << 16;   // a piece has at least so many bytes, the last one aside
  size_t longest = size_t{1} << 20;  // and at most so many
  size_t probe = 512;                // looked at on both sides of a border
};

struct Piece {
  size_t size = 0;    // bytes to tokenize
  size_t gap = 0;     // bytes after them that belong to no piece: 0, or the space of a border
  bool last = false;  // of its document
};

// Where a piece ends follows from the document and the sizes alone, not from how it was read:
// - Bytes: after `target` bytes.
// - Other tokenizers: at the first border from `target` on that is safe. Borders are behind a line
//   feed and before a space, with no white space on the other side of either. Safe is one where the
//   `probe` bytes before it and those after it give, one by one, the tokens that they give as one
//   text; the space itself goes to the piece behind it, or, when that is what gives the same
//   tokens, to none (SentencePiece puts a space before each text).
// - Where none of the first 64 borders is safe, what is left of the document is one piece, if it
// has
//   at most `longest` bytes. Else the piece ends behind the first line feed among the borders, or
//   without one before the last character that begins within `longest` bytes. Only there may tokens
//   differ from those of the whole document.
class PieceCutter {
 public:
  explicit PieceCutter(const Tokenizer& tokenizer, PieceSizes sizes = {});

  // Bytes of a document that must be there for next(), unless they are the document's last.
  size_t lookahead() const { return sizes_.longest + sizes_.probe + 8; }
  // The first piece of `text`, what is left of a document; `complete`: to its end.
  Piece next(std::string_view text, bool complete);

 private:
  struct Border {
    size_t end = 0, gap = 0;  // of the first safe border; 0: there is none
    size_t first_line = 0;    // behind the first line feed that is a border; 0: none before `end`
  };
  Border find_border(std::string_view text) const;
  // Whether text[0, end) and text[begin, ...) give the tokens that they give together.
  bool safe(std::string_view text, size_t end, size_t begin) const;

  std::unique_ptr<TokenEncoder> encoder_;
  PieceSizes sizes_;
  bool bytes_;
};

}  // namespace quern
