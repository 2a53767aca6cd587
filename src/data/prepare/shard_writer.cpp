#include "data/prepare/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "io/folder.h"
#include "io/mapped_file.h"

namespace quern {

namespace fs = std::filesystem;

ShardWriter::ShardWriter(fs::path folder, std::string name, TokenSidecar sidecar,
                         int64_t shard_tokens, ShardState state)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      sidecar_(std::move(sidecar)),
      shard_tokens_(shard_tokens),
      state_(std::move(state)) {
  remove_later_shards();
  check_finished_shards();
  if (state_.tokens > 0) take_up_shard();
}

fs::path ShardWriter::path(int64_t shard) const {
  return folder_ / fmt::format("{}_{:05}.bin", name_, shard);
}

void ShardWriter::check_finished_shards() {
  for (int64_t shard = 0; shard < state_.shard(); ++shard) {
    const FileDigest expected = state_.finished[static_cast<size_t>(shard)].digest;
    const FileDigest found = digest_of_file(path(shard));
    QUERN_CHECK(found == expected, path(shard).string(), ": has ", found.bytes,
                " bytes with checksum ", hex(found.xxh3), ", expected ", expected.bytes, " with ",
                hex(expected.xxh3), ", as the journal says", kBeginAnew);
    write_sidecar(shard, shard_tokens_);
  }
}

// Continues in the unfinished shard, whose name may be the final one already.
void ShardWriter::take_up_shard() {
  const fs::path part = fs::path(path(state_.shard())) += ".part";
  const fs::path there = fs::exists(part) ? part : path(state_.shard());
  const int64_t header = TokenFileWriter::header_bytes(sidecar_.encoding);
  {
    const MappedFile file = MappedFile::open(there);
    const int64_t bytes = header + state_.tokens * bytes_per_token(sidecar_.encoding);
    const auto size = static_cast<int64_t>(file.bytes().size());
    QUERN_CHECK(size >= bytes, there.string(), ": has ", size, " bytes, expected at least ", bytes,
                kBeginAnew);
    digest_.add(
        file.bytes().subspan(static_cast<size_t>(header), static_cast<size_t>(bytes - header)));
  }
  const uint64_t found = digest_.digest().xxh3;
  QUERN_CHECK(found == state_.xxh3, there.string(), ": its first ", state_.tokens,
              " tokens have the checksum ", hex(found), ", expected ", hex(state_.xxh3),
              ", as the journal says", kBeginAnew);
  file_ = std::make_unique<TokenFileWriter>(path(state_.shard()), sidecar_.encoding, state_.tokens);
}

void ShardWriter::remove_later_shards() const {
  for (const fs::path& path : entries_of(folder_)) {
    const std::string file = path.filename().string();
    if (!file.starts_with(name_ + "_")) continue;
    int64_t shard = -1;
    const char* digits = file.data() + name_.size() + 1;
    if (std::from_chars(digits, file.data() + file.size(), shard).ec != std::errc()) continue;
    const bool kept = shard < state_.shard() ||
                      (shard == state_.shard() && state_.tokens > 0 && !file.ends_with(".json"));
    if (!kept) remove_tree(path);
  }
}

void ShardWriter::write(std::span<const std::byte> elements, bool begins) {
  const int64_t size = bytes_per_token(sidecar_.encoding);
  while (!elements.empty()) {
    if (!file_) {
      file_ = std::make_unique<TokenFileWriter>(path(state_.shard()), sidecar_.encoding);
    }
    const auto here = static_cast<size_t>((shard_tokens_ - state_.tokens) * size);
    const std::span<const std::byte> part = elements.first(std::min(elements.size(), here));
    file_->write(part);
    digest_.add(part);
    const int64_t tokens = static_cast<int64_t>(part.size()) / size;
    state_.tokens += tokens;
    state_.all_tokens += tokens;
    if (std::exchange(begins, false)) {
      ++state_.documents;
      ++state_.all_documents;
    }
    elements = elements.subspan(part.size());
    if (state_.tokens == shard_tokens_) finish_shard();
  }
}

void ShardWriter::sync() {
  if (file_) file_->sync();
  state_.xxh3 = digest_.digest().xxh3;
}

void ShardWriter::finish() {
  if (file_) finish_shard();
}

void ShardWriter::finish_shard() {
  file_->commit();
  file_.reset();
  const int64_t shard = state_.shard();
  state_.finished.push_back({digest_of_file(path(shard)), state_.documents});
  write_sidecar(shard, state_.tokens);
  state_.tokens = state_.documents = 0;
  digest_ = {};
}

void ShardWriter::write_sidecar(int64_t shard, int64_t tokens) {
  const Finished& finished = state_.finished[static_cast<size_t>(shard)];
  sidecar_.tokens = tokens;
  sidecar_.documents = finished.documents;
  sidecar_.file = finished.digest;
  write_token_sidecar(path(shard), sidecar_);
}

}  // namespace quern
