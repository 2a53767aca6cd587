#include "data/prepare/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"

namespace quern {

namespace fs = std::filesystem;

ShardWriter::ShardWriter(fs::path folder, std::string name, TokenSidecar sidecar,
                         int64_t shard_tokens, ShardState state)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      sidecar_(std::move(sidecar)),
      shard_tokens_(shard_tokens),
      state_(state) {
  remove_later_shards();
  if (state_.tokens > 0) {
    file_ = std::make_unique<TokenFileWriter>(path(), sidecar_.encoding, state_.tokens);
  }
}

fs::path ShardWriter::path() const {
  return folder_ / fmt::format("{}_{:05}.bin", name_, state_.shard);
}

void ShardWriter::remove_later_shards() const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(name_ + "_")) continue;
    int64_t shard = -1;
    const char* digits = file.data() + name_.size() + 1;
    if (std::from_chars(digits, file.data() + file.size(), shard).ec != std::errc()) continue;
    const bool kept = shard < state_.shard ||
                      (shard == state_.shard && state_.tokens > 0 && !file.ends_with(".json"));
    if (!kept) fs::remove(entry.path());
  }
}

void ShardWriter::write(std::span<const std::byte> elements, bool begins) {
  const int64_t size = bytes_per_token(sidecar_.encoding);
  while (!elements.empty()) {
    if (!file_) file_ = std::make_unique<TokenFileWriter>(path(), sidecar_.encoding);
    const auto here = static_cast<size_t>((shard_tokens_ - state_.tokens) * size);
    const std::span<const std::byte> part = elements.first(std::min(elements.size(), here));
    file_->write(part);
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
}

void ShardWriter::finish() {
  if (file_) finish_shard();
}

void ShardWriter::finish_shard() {
  file_->commit();
  file_.reset();
  sidecar_.tokens = state_.tokens;
  sidecar_.documents = state_.documents;
  sidecar_.file = digest_of_file(path());
  write_token_sidecar(path(), sidecar_);
  ++state_.shard;
  state_.tokens = state_.documents = 0;
}

}  // namespace quern
