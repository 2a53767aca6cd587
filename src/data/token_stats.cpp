#include "data/token_stats.h"

#include <algorithm>
#include <bit>

namespace quern {

void TokenCounter::add(const TokenFile& file) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  for (int64_t begin = 0; begin < file.size(); begin += kBlock) {
    const int64_t count = std::min(kBlock, file.size() - begin);
    file.copy(begin, count, block.data());
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = block[static_cast<size_t>(i)];
      // As the file has them: a uint32 beyond 2^31 is a large token, not a negative one.
      largest_ = std::max<int64_t>(largest_, static_cast<uint32_t>(token));
      if (end_token_ && token == *end_token_) {
        ++counts_[length_];
        length_ = 0;
      } else {
        ++length_;
      }
    }
  }
  tokens_ += file.size();
}

LengthStats TokenCounter::lengths() const {
  LengthStats stats;
  double sum = 0.0;
  for (const auto& [length, count] : counts_) {
    stats.documents += count;
    sum += static_cast<double>(length) * static_cast<double>(count);
    const auto place = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)));
    if (stats.histogram.size() <= place) stats.histogram.resize(place + 1);
    stats.histogram[place] += count;
  }
  if (stats.documents == 0) return stats;
  stats.shortest = counts_.begin()->first;
  stats.longest = counts_.rbegin()->first;
  stats.mean = sum / static_cast<double>(stats.documents);
  int64_t before = 0;
  for (const auto& [length, count] : counts_) {
    before += count;
    if (before >= (stats.documents + 1) / 2) {
      stats.median = length;
      break;
    }
  }
  return stats;
}

}  // namespace quern
