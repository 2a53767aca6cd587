// What is trained and validated on: two stretches of tokens, wherever they lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/data_format.h"
#include "data/token_file.h"

namespace quern {

// A range of a corpus that is held in memory or mapped. Copies share the corpus.
class TokenSource {
 public:
  TokenSource() = default;  // no tokens
  TokenSource(std::vector<uint16_t> tokens, std::string name);
  explicit TokenSource(TokenFile file);

  const std::string& name() const { return name_; }  // for messages: the path it came from
  int64_t size() const { return size_; }             // tokens
  // Tokens [begin, begin + count) into out. Throws when they are not all in the source.
  void copy(int64_t begin, int64_t count, int32_t* out) const;
  TokenSource slice(int64_t begin, int64_t end) const;

  // These two read every token.
  int64_t largest_token() const;  // -1 without tokens
  // Throws naming offset (in the whole corpus) and value of the first token >= vocab_size.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  // f(position of the first, tokens), block by block.
  template <class F>
  void for_each_block(F&& f) const;

  using Memory = std::shared_ptr<const std::vector<uint16_t>>;
  using File = std::shared_ptr<const TokenFile>;

  std::variant<Memory, File> corpus_;
  std::string name_;
  int64_t begin_ = 0;
  int64_t size_ = 0;
};

struct DataOptions {
  std::string train;                 // a text file, a folder of text files, or a token file
  std::string validation;            // the same; empty: the end of train
  double validation_fraction = 0.1;  // of train's tokens, when validation is empty; 0: none
  DataFormat format = DataFormat::automatic;
};

struct Dataset {
  TokenSource train;
  TokenSource validation;
  bool is_text = false;  // the tokens are those of byte_tokenizer.h

  // The smallest vocabulary that holds every token: 257 for text; reads every token otherwise.
  int64_t vocabulary() const;
};

// Automatic takes a folder as text, a file with llm.c's magic or named *.bin as tokens, and any
// other file as text. The first floor(n (1 - validation_fraction)) tokens train. Throws when a path
// is missing or empty, and when a part has fewer than context + 1 tokens.
Dataset open_dataset(const DataOptions& options, int64_t context);

}  // namespace quern
