// Several token files as one stream, in their order. A document may go on in the next file, as
// `quern data prepare` writes it, so nothing ends where a file does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace quern {

class TokenShards {
 public:
  explicit TokenShards(std::vector<TokenFile> files);

  int64_t size() const { return begins_.back(); }  // tokens
  const std::vector<TokenFile>& files() const { return files_; }

  // Tokens [begin, begin + count) of the stream into out; the caller keeps them within size().
  void copy(int64_t begin, int64_t count, int32_t* out) const;

  // Where token `position` of the stream lies, for messages: "a/train_00001.bin: token 17".
  std::string place(int64_t position) const;

 private:
  size_t file_of(int64_t position) const;

  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_;  // the position of each file's first token, and the end of the last
};

}  // namespace quern
