// The training and validation data: two ranges of tokens, in memory or in files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "data/token_file.h"
#include "text/tokenizer.h"

namespace quern {

// A range of a corpus in memory or in mapped files. Copies share the corpus.
class TokenSource {
 public:
  TokenSource() = default;  // no tokens
  TokenSource(std::vector<uint16_t> tokens, std::string name);
  TokenSource(std::vector<int32_t> tokens, std::string name);
  explicit TokenSource(TokenFile file);
  // Concatenates several files under one name.
  TokenSource(std::vector<TokenFile> files, std::string name);

  const std::string& name() const { return name_; }  // for messages: the path it came from
  int64_t size() const { return size_; }             // tokens
  // Copies tokens [begin, begin + count) to out. Throws when the range exceeds the source.
  void copy(int64_t begin, int64_t count, int32_t* out) const;
  TokenSource slice(int64_t begin, int64_t end) const;
  // "N tokens, checksum X": X of blocks of tokens at even distances, 1 MiB in all. Corpora with
  // equal fingerprints are equal, except for rare changes between the blocks.
  std::string fingerprint() const;
  // The token files of the corpus; empty when the tokens are in memory.
  std::span<const TokenFile> files() const;

  // Calls f(position of the first token, tokens) for each block.
  template <class F>
  void for_each_block(F&& f) const {
    constexpr int64_t kBlock = 1 << 16;
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(size_, kBlock)));
    for (int64_t begin = 0; begin < size_; begin += kBlock) {
      const int64_t count = std::min(kBlock, size_ - begin);
      copy(begin, count, tokens.data());
      f(begin, std::span<const int32_t>(tokens).first(static_cast<size_t>(count)));
    }
  }

  // These two read every token.
  int64_t largest_token() const;  // -1 without tokens
  // Throws naming file, offset in it and value of the first token >= vocab_size.
  void check_vocabulary(int64_t vocab_size) const;
  // The same for `tokens`, copied from position `begin` on.
  void check_tokens(int64_t begin, std::span<const int32_t> tokens, int64_t vocab_size) const;

 private:
  // File and offset of a corpus position, for messages.
  std::string place(int64_t position) const;

  template <class T>
  using Memory = std::shared_ptr<const std::vector<T>>;
  struct Shards;  // token files as one stream
  using Files = std::shared_ptr<const Shards>;

  std::variant<Memory<uint16_t>, Memory<int32_t>, Files> corpus_;
  std::string name_;
  int64_t begin_ = 0;
  int64_t size_ = 0;
};

struct DataOptions {
  // A text file, a folder of text files, a token file, a pattern (* ? [...]) of token files, or a
  // folder that `quern data prepare` wrote: its train_*.bin.
  std::string train;
  // The same, with validation_*.bin for such a folder. Empty: the validation_*.bin in train's
  // folder, otherwise the end of train.
  std::string validation;
  double validation_fraction = 0.1;  // part of train's tokens, if its end is used; 0: no validation
  DataFormat format = DataFormat::automatic;
};

struct Dataset {
  TokenSource train;
  TokenSource validation;
  bool is_text = false;  // the tokens are those of byte_tokenizer.h

  // The smallest vocabulary with every token: 257 for text; otherwise reads every token.
  int64_t vocabulary() const;
};

// True when `path` is a folder with validation_*.bin, as `quern data prepare` writes it.
bool has_validation_files(const std::string& path);

// Encodes the training part of a text Dataset with another tokenizer. Its end token, if any,
// follows each document, as in `quern data prepare`.
Dataset encode_text(const Dataset& text, const Tokenizer& tokenizer);

// The automatic format reads a folder as text unless it has a train_*.bin. It reads a file with
// llm.c's magic or named *.bin as tokens, and any other file as text. Several token files are
// concatenated by name, and a window may span two files. The first floor(n (1 -
// validation_fraction)) tokens train. Throws when a path is missing or empty, a pattern matches
// nothing or a text file, and when a part has fewer than context + 1 tokens.
Dataset open_dataset(const DataOptions& options, int64_t context);

}  // namespace quern
