#include "io/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace quern {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Checksum, MatchesXxHash) {
  // XXH3-64 of nothing, from xxHash's own test vectors (seed 0).
  EXPECT_EQ(hex(digest_of({}).xxh3), "2d06800538d394c2");
  EXPECT_EQ(hex(0xab), "00000000000000ab");
}

TEST(Checksum, PiecesGiveTheSameAsTheWhole) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text.push_back(static_cast<char>(i * 7 + i / 256));
  const FileDigest whole = digest_of(bytes_of(text));
  DigestStream stream;
  for (size_t begin = 0, step = 1; begin < text.size(); begin += step, step = step * 3 % 1021 + 1) {
    step = std::min(step, text.size() - begin);
    stream.add(bytes_of(text).subspan(begin, step));
  }
  EXPECT_EQ(stream.digest(), whole);
  text[50000] ^= 1;
  EXPECT_NE(digest_of(bytes_of(text)).xxh3, whole.xxh3);
}

TEST(FileDigest, EqualInSizeAndChecksum) {
  EXPECT_EQ((FileDigest{1, 2}), (FileDigest{1, 2}));
  EXPECT_NE((FileDigest{1, 2}), (FileDigest{3, 2}));
  EXPECT_NE((FileDigest{1, 2}), (FileDigest{1, 3}));
}

}  // namespace
}  // namespace quern
