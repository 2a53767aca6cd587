#include "io/byte_stream.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <random>

#include "support/compress.h"
#include "support/files.h"
#include "support/random_text.h"

namespace quern {
namespace {

using namespace testing_support;

std::string read_all(const std::filesystem::path& path, size_t block = 1000,
                     RawObserver observer = {}) {
  const auto stream = open_byte_stream(path, std::move(observer));
  std::string text, buffer(block, '\0');
  for (;;) {
    const size_t n = stream->read(buffer.data(), block);
    if (n == 0) return text;
    text.append(buffer, 0, n);
  }
}

class ByteStreamTest : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& bytes, const std::string& name = "file") {
    return write_file(folder_ / name, bytes);
  }
  void expect_refused(const std::string& bytes, std::initializer_list<std::string> parts) {
    const auto path = file(bytes);
    expect_error([&] { read_all(path); }, parts);
  }
  // Compressible, and longer than several input buffers even when compressed.
  static std::string text() {
    std::mt19937 random(1);
    return random_text(random, 3'000'000);
  }
  TemporaryFolder folder_;
};

TEST_F(ByteStreamTest, ToldByContentNotByName) {
  const std::string text = "line\nline\n";
  EXPECT_EQ(read_all(file(text)), text);
  EXPECT_EQ(read_all(file(gzip(text))), text);
  EXPECT_EQ(read_all(file(zstd(text))), text);
  EXPECT_EQ(read_all(file("")), "");
}

TEST_F(ByteStreamTest, AllMembersAndFrames) {
  const std::string all = text(), first = all.substr(0, 1'000'001), rest = all.substr(1'000'001);
  for (const size_t block : {size_t{7777}, size_t{1} << 20}) {
    EXPECT_EQ(read_all(file(gzip(first) + gzip("") + gzip(rest)), block), all);
    EXPECT_EQ(read_all(file(zstd(first) + zstd("") + zstd(rest)), block), all);
  }
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  EXPECT_EQ(read_all(file(skippable + zstd(first) + skippable)), first);
  EXPECT_EQ(read_all(file(gzip(first) + std::string(1000, '\0'))), first);  // padding
}

TEST_F(ByteStreamTest, ObserverSeesTheFileAsItIs) {
  const std::string bytes = gzip(text()) + std::string(100, '\0');
  std::string seen;
  read_all(file(bytes), 50'000, [&](std::span<const std::byte> part) {
    seen.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  EXPECT_EQ(seen, bytes);
}

TEST_F(ByteStreamTest, CutAnywhereIsRefused) {
  const std::string whole = gzip("some text, and some text again"), frame = zstd(text());
  for (size_t size = 2; size < whole.size(); ++size) {
    expect_refused(whole.substr(0, size),
                   {"file: gzip data is cut off at byte " + std::to_string(size)});
  }
  for (const size_t size : {size_t{4}, size_t{5}, frame.size() / 2, frame.size() - 1}) {
    expect_refused(frame.substr(0, size),
                   {"file: zstd data is cut off at byte " + std::to_string(size)});
  }
  // The error is in the second member, after the whole first one.
  expect_refused(whole + whole.substr(0, 5),
                 {"cut off at byte " + std::to_string(whole.size() + 5)});
  expect_refused(frame + frame.substr(0, 9),
                 {"cut off at byte " + std::to_string(frame.size() + 9)});
}

TEST_F(ByteStreamTest, DamageIsRefused) {
  for (const auto compress : {gzip, zstd}) {
    std::string bytes = compress(text());
    bytes[bytes.size() / 2] ^= 1;
    expect_refused(bytes, {"file: ", "damaged", "at byte"});
    bytes = compress("abc");
    bytes.back() ^= 1;  // the length of gzip, the checksum of zstd
    expect_refused(bytes, {"damaged"});
  }
}

TEST_F(ByteStreamTest, WhatFollowsIsNotIgnored) {
  const std::string member = gzip("abc"), frame = zstd("abc");
  const std::string at = "at byte " + std::to_string(member.size());
  expect_refused(member + "text", {"trailing data is not gzip", at});
  expect_refused(member + std::string("\0\0x", 3),
                 {"trailing data is not gzip", "at byte " + std::to_string(member.size() + 2)});
  expect_refused(member +
                     "\x1F"
                     "no member",
                 {"damaged"});
  expect_refused(frame + "text", {"zstd data is damaged"});
}

TEST_F(ByteStreamTest, NamesAreHeldToTheirWord) {
  const auto opened = [&](const std::string& bytes, const std::string& name) {
    const auto path = file(bytes, name);
    return [=] { open_byte_stream(path); };
  };
  expect_error(opened("text", "a.gz"), {"a.gz", "named .gz"});
  expect_error(opened("", "b.gz"), {"b.gz", "named .gz"});
  expect_error(opened(gzip("x"), "a.zst"), {"a.zst", "named .zst"});
  expect_error([&] { open_byte_stream(folder_ / "none"); }, {"none", "No such file"});
  expect_error([&] { read_all(folder_.path()); }, {"Is a directory"});
}

TEST_F(ByteStreamTest, SkipCountsWhatIsThere) {
  const std::string digits = "0123456789";
  for (const std::string& bytes : {digits, gzip(digits), zstd(digits)}) {
    for (const bool observed : {false, true}) {
      int64_t seen = 0;
      RawObserver observer;
      if (observed) observer = [&](std::span<const std::byte> part) { seen += std::ssize(part); };
      const auto stream = open_byte_stream(file(bytes), observer);
      EXPECT_EQ(stream->skip(4), 4);
      char next = 0;
      EXPECT_EQ(stream->read(&next, 1), 1u);
      EXPECT_EQ(next, '4');
      EXPECT_EQ(stream->skip(100), 5);
      EXPECT_EQ(stream->read(&next, 1), 0u);
      EXPECT_EQ(seen, observed ? std::ssize(bytes) : 0);
    }
  }
}

// Without a checksum behind it, the last block is read before its text is all handed out.
TEST(ByteStream, ZstdWithoutAChecksum) {
  const TemporaryFolder folder;
  const std::string text(100'000, 'x');
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  for (const size_t cut : {0u, 1u}) {
    const auto path = write_file(folder / "a.zst", packed.substr(0, packed.size() - cut));
    const auto stream = open_byte_stream(path);
    std::string all;
    const auto read = [&] {
      for (char c = 0; stream->read(&c, 1) == 1;) all += c;
    };
    if (cut == 0) {
      read();
      EXPECT_EQ(all, text);
    } else {
      expect_error(read, {"zstd data is cut off"});
    }
  }
}

TEST(ByteStream, ADeviceIsReadInsteadOfSeeking) {
  EXPECT_EQ(open_byte_stream("/dev/zero")->skip(3), 3);
}

// The decoder holds back what does not fit: it goes on after the file's last byte.
TEST(ByteStream, ZstdByteByByte) {
  const TemporaryFolder folder;
  const std::string text(100'000, 'x');
  const auto stream = open_byte_stream(write_file(folder / "a.zstd", zstd(text)));
  std::string all;
  for (char c = 0; stream->read(&c, 1) == 1;) all += c;
  EXPECT_EQ(all, text);
}

}  // namespace
}  // namespace quern
