// Published attacks on model and data files, one test each.
#include <gtest/gtest.h>

#include <filesystem>

#include "hf/huggingface.h"
#include "io/input_files.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "support/files.h"

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

TEST(Attacks, AHundredThousandTensors) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += cat(i > 0 ? "," : "", tensor(cat("t", i), "[0]", "[0,0]"));
  }
  const TemporaryFolder folder;
  const auto file =
      SafetensorsFile::open(write_file(folder / "x", safetensors(cat(header, "}"), 0)));
  EXPECT_EQ(file.entries().size(), 100'000u);
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
                 "opens level 201 of nested values");
  const TemporaryFolder folder;
  const auto path = write_file(folder / "tokenizer.json", cat("{\"model\":", deep, "}"));
  expect_error([&] { JsonFile{path}; }, {"tokenizer.json: byte 208 opens level 201"});
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

TEST(Attacks, LinksThatLoop) {
  const TemporaryFolder folder;
  write_file(folder / "data/a.txt", "text");
  fs::create_directory_symlink("..", folder / "data/loop");
  const std::vector<std::string> inputs{folder.path()};
  expect_error([&] { find_input_files(inputs); }, {"data/loop: is a link to a folder"});
}

}  // namespace
}  // namespace quern
