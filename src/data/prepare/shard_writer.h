// The token files of one part of the data, "train" or "validation": one after the other, each with
// its sidecar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "data/token_file_writer.h"
#include "data/token_sidecar.h"

namespace quern {

// How far a part is written.
struct ShardState {
  int64_t shard = 0;                          // the one that is being written
  int64_t tokens = 0, documents = 0;          // in it
  int64_t all_tokens = 0, all_documents = 0;  // in all

  friend bool operator==(const ShardState&, const ShardState&) = default;
};

class ShardWriter {
 public:
  // FOLDER/NAME_00000.bin and so on, of `shard_tokens` tokens each but the last. Goes on where
  // `state` says and removes what is there beyond it. `sidecar` holds what is the same for all.
  ShardWriter(std::filesystem::path folder, std::string name, TokenSidecar sidecar,
              int64_t shard_tokens, ShardState state);

  // `elements`: of one document or a piece of it; `begins`: it is the document's first. Documents
  // run on from one shard to the next.
  void write(std::span<const std::byte> elements, bool begins);
  void sync();    // what was written is on the disk
  void finish();  // the last shard is whole
  const ShardState& state() const { return state_; }

 private:
  std::filesystem::path path() const;  // of the shard that is being written
  void remove_later_shards() const;
  void finish_shard();

  std::filesystem::path folder_;
  std::string name_;
  TokenSidecar sidecar_;
  int64_t shard_tokens_;
  ShardState state_;
  std::unique_ptr<TokenFileWriter> file_;  // none before the shard's first token
};

}  // namespace quern
