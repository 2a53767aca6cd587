#include "io/checksum.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace quern {

FileDigest digest_of(std::span<const std::byte> bytes) {
  return {static_cast<int64_t>(bytes.size()), XXH3_64bits(bytes.data(), bytes.size())};
}

std::string hex(uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

std::string checksum_of(std::string_view text) {
  return hex(digest_of(std::as_bytes(std::span(text))).xxh3);
}

struct DigestStream::State {
  XXH3_state_t hash;
  int64_t bytes = 0;
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->hash);
}

DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;

void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
  state_->bytes += static_cast<int64_t>(bytes.size());
}

FileDigest DigestStream::digest() const {
  return {state_->bytes, XXH3_64bits_digest(&state_->hash)};
}

}  // namespace quern
