#include "io/checksum.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

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

static constexpr std::string_view kSeal = "# xxh3 ";

std::string sealed(std::string text) {
  text += cat(kSeal, checksum_of(text), '\n');
  return text;
}

std::string unsealed(std::string text, const std::filesystem::path& path) {
  const size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
  const size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  const std::string last = text.substr(begin, end - begin);
  if (!last.starts_with(kSeal)) return text;
  text.resize(begin);
  const std::string found = checksum_of(text), expected = last.substr(kSeal.size());
  QUERN_CHECK(found == expected, path.string(), ": its lines have the checksum ", found,
              ", expected ", expected,
              " as its last line says: it is damaged; after an edit by hand, remove that line");
  return text;
}

}  // namespace quern
