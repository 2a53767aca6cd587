#include "data/token_shards.h"

#include <algorithm>

#include "base/error.h"

namespace quern {

TokenShards::TokenShards(std::vector<TokenFile> files) : files_(std::move(files)), begins_{0} {
  for (const TokenFile& file : files_) begins_.push_back(begins_.back() + file.size());
}

size_t TokenShards::file_of(int64_t position) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), position);
  return static_cast<size_t>(after - begins_.begin()) - 1;
}

void TokenShards::copy(int64_t begin, int64_t count, int32_t* out) const {
  for (size_t i = file_of(begin); count > 0; ++i) {
    const int64_t here = std::min(count, begins_[i + 1] - begin);
    files_[i].copy(begin - begins_[i], here, out);
    begin += here;
    out += here;
    count -= here;
  }
}

std::string TokenShards::place(int64_t position) const {
  const size_t i = file_of(position);
  return cat(files_[i].path().string(), ": token ", position - begins_[i]);
}

}  // namespace quern
