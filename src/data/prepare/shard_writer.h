// Writes the token files of one part of the data, "train" or "validation", in order, each with its
// sidecar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/token_sidecar.h"

namespace quern {

// The end of error messages about output that cannot be continued.
inline constexpr const char* kBeginAnew = "; remove the folder and begin anew";

// A whole source or shard.
struct Finished {
  FileDigest digest;
  int64_t documents = 0;

  friend bool operator==(const Finished&, const Finished&) = default;
};

// The progress of writing a part.
struct ShardState {
  int64_t tokens = 0, documents = 0;          // in the current shard
  int64_t all_tokens = 0, all_documents = 0;  // in all shards
  uint64_t xxh3 = 0;                          // of the current shard's tokens, since sync()
  std::vector<Finished> finished;             // the shards before the current one

  int64_t shard() const { return static_cast<int64_t>(finished.size()); }  // the current one

  friend bool operator==(const ShardState&, const ShardState&) = default;
};

class ShardWriter {
 public:
  // Writes FOLDER/NAME_00000.bin and so on, all but the last with `shard_tokens` tokens. Continues
  // at `state` and removes later output. `sidecar` has the fields common to all shards. Reads
  // earlier output once; throws naming the file when it differs from `state`. Sidecars are written
  // again.
  ShardWriter(std::filesystem::path folder, std::string name, TokenSidecar sidecar,
              int64_t shard_tokens, ShardState state);

  // `elements`: tokens of a document or a piece of it; `begins`: the document's first piece.
  // Documents continue across shards.
  void write(std::span<const std::byte> elements, bool begins);
  void sync();    // flushes all tokens to disk
  void finish();  // completes the last shard
  const ShardState& state() const { return state_; }

 private:
  std::filesystem::path path(int64_t shard) const;
  void remove_later_shards() const;
  void check_finished_shards();
  void take_up_shard();
  void finish_shard();
  void write_sidecar(int64_t shard, int64_t tokens);

  std::filesystem::path folder_;
  std::string name_;
  TokenSidecar sidecar_;
  int64_t shard_tokens_;
  ShardState state_;
  DigestStream digest_;                    // of the current shard's tokens
  std::unique_ptr<TokenFileWriter> file_;  // null before the shard's first token
};

}  // namespace quern
