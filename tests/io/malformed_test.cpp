// Malformed safetensors files and compressed streams.
#include "support/malformed.h"

#include <gtest/gtest.h>

#include "io/byte_stream.h"
#include "io/safetensors.h"
#include "support/compress.h"

namespace quern {
namespace {

using namespace testing_support;

// The header's length, the header, `bytes` zeros.
std::string safetensors(const std::string& header, size_t bytes = 0) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(bytes, '\0');
}

// One tensor 'a' with these members, in a file with 4 bytes of data.
std::string tensor(const std::string& members) {
  return safetensors(cat("{\"a\":", members, "}"), 4);
}

TEST(Malformed, Safetensors) {
  const TemporaryFolder folder;
  expect_malformed(
      folder / "model.safetensors",
      {{"empty", "", "", "has 0 bytes", "expected at least the 8"},
       {"cut in the length", "\x10", "", "has 1 bytes", "expected at least the 8"},
       {"cut in the header", safetensors("{\"a\":1}").substr(0, 10), "header", "2 bytes after it",
        "length is 7 bytes"},
       {"no header", safetensors(""), "header length", "is 0 bytes", "at least 2"},
       {"a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
        "header length", "is a pointer of Git LFS", "expected at most 100000000"},
       {"a header that is a list", safetensors("[1]"), "header", "begins with '['", "'{'"},
       {"JSON that ends early", safetensors("{\"a\":{\"dtype\""), "header", "end of input", "':'"},
       {"a comma too many", safetensors("{\"a\":{},}"), "column 9", "found '}'", "string literal"},
       {"a tensor that is a number", tensor("7"), "'a'", "is 7", "expected an object"},
       {"no dtype", tensor(R"({"shape":[4],"data_offsets":[0,4]})"), "'a'", "has no", "dtype"},
       {"a dtype that is a number", tensor(R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})"),
        "'a': dtype", "is 8", "expected a string"},
       {"an unknown dtype", tensor(R"({"dtype":"F31","shape":[4],"data_offsets":[0,4]})"),
        "'a': dtype", "\"F31\"", "a dtype of the format"},
       {"no shape", tensor(R"({"dtype":"U8","data_offsets":[0,4]})"), "'a'", "has no", "shape"},
       {"a shape that is text", tensor(R"({"dtype":"U8","shape":"4","data_offsets":[0,4]})"),
        "'a': shape", "\"4\"", "a list of at most 8 numbers"},
       {"a negative dimension", tensor(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"),
        "'a': shape[0]", "is -4", "a whole number of 0 or more"},
       {"a fraction", tensor(R"({"dtype":"U8","shape":[2,2.5],"data_offsets":[0,4]})"),
        "'a': shape[1]", "is 2.5", "a whole number of 0 or more"},
       {"offsets that turn back", tensor(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"),
        "'a': data_offsets", "[4,0]", "a pair [begin, end]"},
       {"one offset", tensor(R"({"dtype":"U8","shape":[4],"data_offsets":[4]})"),
        "'a': data_offsets", "[4]", "a pair [begin, end]"},
       {"three offsets", tensor(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,8]})"),
        "'a': data_offsets", "[0,4,8]", "at most 2 numbers"},
       {"data beyond the file", tensor(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})"), "'a'",
        "ends at byte 9", "at most 4"},
       {"a shape of another size", tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
        "'a'", "has 4 bytes", "8 for shape (2) of F32"},
       {"metadata that is a list", safetensors(R"({"__metadata__":[]})"), "__metadata__", "is []",
        "an object"},
       {"metadata with a number", safetensors(R"({"__metadata__":{"n":1}})"), "__metadata__: n",
        "is 1", "a string"}},
      [](const auto& path) { SafetensorsFile::open(path); });
}

void read_all(const std::filesystem::path& path) {
  const auto stream = open_byte_stream(path);
  std::string buffer(1 << 16, '\0');
  while (stream->read(buffer.data(), buffer.size()) > 0) {
  }
}

const std::string kProse = "The mill turns, the mill turns.";

TEST(Malformed, Gzip) {
  const TemporaryFolder folder;
  const std::string whole = gzip(kProse);
  expect_malformed(
      folder / "text.txt.gz",
      {{"another format", "text", "begins with", "74 65 78 74", "a gzip file"},
       {"empty", "", "", "is empty", "a gzip file"},
       {"cut in its header", whole.substr(0, 6), "byte 6", "is cut off", "a whole file"},
       {"cut in its data", whole.substr(0, 28), "byte 28", "is cut off", "a whole file"},
       {"an unknown method", flipped(whole, 2), "byte 4", "is damaged", "a whole file"},
       {"a damaged block", flipped(whole, 10), "byte 13", "is damaged", "a whole file"},
       {"another checksum", flipped(whole, 32), "byte 36", "is damaged", "a whole file"},
       {"another length", flipped(whole, 36), "byte 40", "is damaged", "a whole file"},
       {"text behind the end", whole + "text", "byte 40", "trailing data", "the file's end"}},
      read_all);
}

TEST(Malformed, Zstd) {
  const TemporaryFolder folder;
  const std::string whole = zstd(kProse);
  expect_malformed(
      folder / "text.txt.zst",
      {{"another format", "text", "begins with", "74 65 78 74", "a zstd file"},
       {"empty", "", "", "is empty", "a zstd file"},
       {"cut", whole.substr(0, 31), "byte 31", "is cut off", "a whole file"},
       {"another length", flipped(whole, 5), "byte 0", "is damaged", "a whole file"},
       {"another checksum", flipped(whole, whole.size() - 1), "byte", "checksum", "a whole file"},
       {"text behind the end", whole + "text", "byte 41", "is damaged", "a whole file"}},
      read_all);
}

}  // namespace
}  // namespace quern
