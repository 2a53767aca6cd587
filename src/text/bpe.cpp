#include "text/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <queue>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

constexpr size_t kMostCached = 1 << 16;  // pieces
constexpr size_t kLongestCached = 48;    // bytes
constexpr int32_t kNone = -1;

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Bytes of the first character of `text`; at least 1 in invalid UTF-8.
size_t character_size(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && continues_utf8(text[size])) ++size;
  return size;
}

// A token of the piece, linked to its neighbours. A symbol merged into its left neighbour has the
// token kNone.
struct Symbol {
  int32_t token, previous, next;
};

// A possible merge of the symbol at `at` and the next one; stale unless they still are `left` and
// `right`.
struct Candidate {
  int32_t rank, at, left, right, result;

  friend bool operator>(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;  // the leftmost first
  }
};

}  // namespace

size_t TextHash::operator()(std::string_view text) const {
  return XXH3_64bits(text.data(), text.size());
}

const std::vector<int32_t>* BpeCache::find(std::string_view piece) const {
  const auto found = pieces_.find(piece);
  return found == pieces_.end() ? nullptr : &found->second;
}

void BpeCache::insert(std::string_view piece, std::span<const int32_t> tokens) {
  if (piece.size() > kLongestCached) return;
  if (pieces_.size() == kMostCached) pieces_.clear();
  pieces_.emplace(piece, std::vector<int32_t>(tokens.begin(), tokens.end()));
}

Bpe::Bpe(const std::array<int32_t, 256>& byte_tokens, std::span<const BpeMerge> merges,
         BpeTokens characters)
    : byte_tokens_(byte_tokens),
      characters_(std::move(characters)),
      slots_(std::bit_ceil(2 * merges.size() + 2)) {
  shift_ = 64 - std::countr_zero(slots_.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    Slot& slot = slots_[slot_of(pair_of(merge.left, merge.right))];
    if (slot.pair != kEmpty) continue;  // duplicate: the first merge counts
    slot = {pair_of(merge.left, merge.right), {static_cast<int32_t>(rank), merge.result}};
  }
}

// The pair's slot, or the empty slot where it would go.
size_t Bpe::slot_of(uint64_t pair) const {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15u;  // Knuth, volume 3, section 6.4
  size_t at = static_cast<size_t>((pair * kGoldenRatio) >> shift_);
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const Bpe::Merged* Bpe::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot.merged;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& tokens) const {
  QUERN_CHECK(piece.size() < size_t{1} << 31, "a piece of ", piece.size(),
              " bytes, expected less than 2 GiB");
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  const auto add = [&](int32_t token) {
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({token, i - 1, i + 1});
  };
  for (size_t i = 0; i < piece.size();) {
    const size_t size = characters_.empty() ? 1 : character_size(piece.substr(i));
    const auto character = characters_.find(piece.substr(i, size));
    if (character != characters_.end()) add(character->second);
    for (const size_t end = i + size; i < end; ++i) {
      const auto byte = static_cast<unsigned char>(piece[i]);
      if (character == characters_.end()) add(byte_tokens_[byte]);
    }
  }
  if (!symbols.empty()) symbols.back().next = kNone;
  const auto n = static_cast<int32_t>(symbols.size());
  const auto symbol = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };

  std::vector<Candidate> storage;
  storage.reserve(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates(
      {}, std::move(storage));
  const auto consider = [&](int32_t at) {
    if (at == kNone || symbol(at).next == kNone) return;
    const int32_t left = symbol(at).token, right = symbol(symbol(at).next).token;
    const Merged* merged = find(left, right);
    if (merged) candidates.push({merged->rank, at, left, right, merged->result});
  };
  for (int32_t i = 0; i + 1 < n; ++i) consider(i);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbol(best.at);
    if (left.token != best.left || left.next == kNone) continue;
    Symbol& right = symbol(left.next);
    if (right.token != best.right) continue;
    left.token = best.result;
    right.token = kNone;
    left.next = right.next;
    if (left.next != kNone) symbol(left.next).previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (const Symbol& s : symbols) {
    if (s.token != kNone) tokens.push_back(s.token);
  }
}

}  // namespace quern
