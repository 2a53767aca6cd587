// Published attacks on model and data files, one test each.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/document_reader.h"
#include "hf/huggingface.h"
#include "io/byte_stream.h"
#include "io/input_files.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "support/compress.h"
#include "support/files.h"
#include "support/heap.h"
#include "support/sanitized.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

// A safetensors file: the header's length, the header, `bytes` zeros.
std::string safetensors(const std::string& header, size_t bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(bytes, '\0');
}

std::string tensor(const std::string& name, const std::string& shape, const std::string& offsets) {
  return cat("\"", name, R"(":{"dtype":"U8","shape":)", shape, R"(,"data_offsets":)", offsets, "}");
}

void expect_refused(const std::string& bytes, const std::string& message) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "x.safetensors", bytes);
  expect_error([&] { SafetensorsFile::open(path); }, {path.string(), message});
}

// Trail of Bits' audit of safetensors (2023): polyglot files.
TEST(Attacks, APolyglotWithAZipBehindTheTensors) {
  const std::string file = safetensors(cat("{", tensor("a", "[4]", "[0,4]"), "}"), 4);
  expect_refused(cat(file, "PK\x03\x04"), "4 bytes after the last tensor");
}

TEST(Attacks, AHoleThatHidesData) {
  const std::string header =
      cat("{", tensor("a", "[4]", "[0,4]"), ",", tensor("b", "[4]", "[8,12]"), "}");
  expect_refused(safetensors(header, 12), "hole of 4 bytes before tensor 'b'");
}

TEST(Attacks, TensorsThatOverlap) {
  const std::string header =
      cat("{", tensor("a", "[4]", "[0,4]"), ",", tensor("b", "[4]", "[2,6]"), "}");
  expect_refused(safetensors(header, 6), "'b' overlaps the one before it by 2 bytes");
}

// The format allows an empty tensor anywhere between the others.
TEST(Attacks, AnEmptyTensorMayShareAnOffset) {
  const TemporaryFolder folder;
  const std::string header =
      cat("{", tensor("a", "[4]", "[0,4]"), ",", tensor("b", "[0,9]", "[0,0]"), "}");
  const auto file = SafetensorsFile::open(write_file(folder / "x", safetensors(header, 4)));
  EXPECT_EQ(file.tensor("b").data.size(), 0u);
  EXPECT_EQ(file.tensor("a").data.size(), 4u);
}

TEST(Attacks, AShapeWhoseProductOverflows) {
  expect_refused(safetensors(cat("{", tensor("a", "[4294967296,4294967296]", "[0,0]"), "}"), 0),
                 "more elements than 64 bits can count");
}

TEST(Attacks, AHeaderLengthThatExhaustsMemory) {
  expect_refused("\xff\xff\xff\xff\xff\xff\xff\x7f{}", "expected at most 100000000");
}

TEST(Attacks, ManyTensors) {
  constexpr int kCount = kSanitized ? 20'000 : 100'000;
  std::string header = "{";
  for (int i = 0; i < kCount; ++i) {
    header += cat(i > 0 ? "," : "", tensor(cat("t", i), "[0]", "[0,0]"));
  }
  const TemporaryFolder folder;
  const auto file =
      SafetensorsFile::open(write_file(folder / "x", safetensors(cat(header, "}"), 0)));
  EXPECT_EQ(file.entries().size(), static_cast<size_t>(kCount));
}

// Parsers that differ on duplicate names (Seriot, "Parsing JSON is a Minefield", 2016).
TEST(Attacks, ADuplicateNameThatParsersReadDifferently) {
  const std::string a = tensor("a", "[4]", "[0,4]");
  expect_refused(safetensors(cat("{", a, ",", a, "}"), 4), "names 'a' twice");
  const TemporaryFolder folder;
  const auto path = write_file(folder / "config.json", R"({"vocab_size": 1, "vocab_size": 2})");
  expect_error([&] { JsonFile{path}; }, {"config.json: names 'vocab_size' twice"});
}

// The same article: 100,000 brackets end recursive parsers.
TEST(Attacks, BracketsThatExhaustTheStack) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  expect_refused(safetensors(cat("{\"a\":{\"dtype\":\"U8\",\"shape\":[", deep, "]}}"), 0),
                 "nests values 201 levels deep");
  const TemporaryFolder folder;
  const auto path = write_file(folder / "tokenizer.json", cat("{\"model\":", deep, "}"));
  expect_error([&] { JsonFile{path}; }, {"tokenizer.json: nests values 201 levels deep"});
}

// Text behind a zero byte, which some parsers see and others do not.
TEST(Attacks, AZeroByteThatEndsTheText) {
  const std::string header = cat("{", tensor("a", "[4]", "[0,4]"), "}", std::string(1, '\0'), "x");
  expect_refused(safetensors(header, 4), "is 0, expected JSON text");
}

// Zip Slip (Snyk, 2018): names that leave the folder.
TEST(Attacks, AShardOutsideTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", "a/../../x", ""}) {
    const TemporaryFolder folder;
    write_file(folder / "model.safetensors.index.json",
               cat(R"({"weight_map": {"a": ")", name, R"("}})"));
    expect_error([&] { TensorSource::open(folder.path()); },
                 {"index.json: tensor 'a' is in '", "expected a file of the same folder"});
  }
}

// 256 MiB from some hundred KB.
TEST(Attacks, ADecompressionBomb) {
  constexpr int64_t kBytes = 256 << 20, kMany = 16;
  const TemporaryFolder folder;
  const std::string letters(kBytes / kMany, 'a');
  for (const std::string name : {"bomb.gz", "bomb.zst"}) {
    const std::string member = name == "bomb.gz" ? gzip(letters) : zstd(letters);
    std::string file;
    for (int64_t i = 0; i < kMany; ++i) file += member;
    ASSERT_LT(std::ssize(file), 1 << 20);
    const fs::path path = write_file(folder / name, file);
    {
      const HeapLimit limit(1 << 20);
      EXPECT_EQ(open_byte_stream(path)->skip(2 * kBytes), kBytes);
    }
    const HeapLimit limit(16 << 20);
    DocumentReaderOptions options;
    options.longest_line = 1 << 20;
    TextBlock block;
    std::vector<std::string> bad;
    const auto lines = read_json_lines(open_byte_stream(path), {}, options);
    while (lines->next(block)) {
      for (const BadInput& what : block.bad) bad.push_back(what.what);
    }
    EXPECT_EQ(bad, std::vector<std::string>{"is longer than 1048576 bytes, expected less"});
    EXPECT_FALSE(limit.was_hit());
  }
}

TEST(Attacks, AWindowThatExhaustsMemory) {
  const TemporaryFolder folder;
  const std::string header("\x28\xB5\x2F\xFD\x00\xA8", 6);  // a window of 2 GiB
  const fs::path path = write_file(folder / "x.zst", header + std::string(3, '\0'));
  const HeapLimit limit(1 << 20);
  char byte = 0;
  expect_error([&] { open_byte_stream(path)->read(&byte, 1); },
               {path.string(), "zstd data is damaged", "memory"});
}

TEST(Attacks, LinksThatLoop) {
  const TemporaryFolder folder;
  write_file(folder / "data/a.txt", "text");
  fs::create_directory_symlink("..", folder / "data/loop");
  const std::vector<std::string> inputs{folder.path()};
  expect_error([&] { find_input_files(inputs); }, {"data/loop: is a link to a folder"});
}

}  // namespace
}  // namespace quern
