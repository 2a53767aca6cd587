#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cstring>
#include <numeric>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

// Builds a file from a header and a number of data bytes.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\x01');
}

std::string tensor_json(const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + tensor_json("x", dtype, shape, offsets) + "}";
}

void expect_refused(const std::string& bytes, std::initializer_list<std::string> parts) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "bad.safetensors", bytes);
  expect_error([&] { SafetensorsFile::open(path); }, {path.string()});
  expect_error([&] { SafetensorsFile::open(path); }, parts);
}

template <class T>
TensorView view_of(const std::string& name, DType dtype, const Shape& shape,
                   const std::vector<T>& data) {
  return {name, dtype, shape, std::as_bytes(std::span(data))};
}

TEST(Safetensors, OpensTheGoldenFiles) {
  const auto model = SafetensorsFile::open(golden_folder() / "mha" / "model.safetensors");
  EXPECT_EQ(model.metadata(), (Metadata{{"format", "pt"}}));
  EXPECT_EQ(model.entries().size(), 21u);  // 2 layers of 9, embedding, norm, head
  const TensorView gate = model.tensor("model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(gate.dtype, DType::f32);
  EXPECT_EQ(gate.shape, (Shape{160, 64}));
  EXPECT_EQ(gate.data.size(), 160u * 64u * 4u);

  const auto expected = SafetensorsFile::open(golden_folder() / "gqa_tied/expected.safetensors");
  EXPECT_EQ(expected.tensor("input_ids").dtype, DType::i64);
  EXPECT_EQ(expected.tensor("losses").shape, (Shape{10}));
  EXPECT_TRUE(expected.contains("grad.model.embed_tokens.weight"));
  EXPECT_FALSE(expected.contains("grad.lm_head.weight"));  // tied
  expect_error([&] { expected.tensor("nothing"); }, {"expected.safetensors", "'nothing'"});
}

TEST(Safetensors, RoundTripsEveryDtype) {
  const TemporaryFolder folder;
  std::vector<std::byte> data(64);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 5);
  std::vector<TensorView> tensors;
  for (const DType dtype : {DType::u8, DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32,
                            DType::i64, DType::u16, DType::boolean}) {
    tensors.push_back({"tensor." + std::string(name_of(dtype)),
                       dtype,
                       {3, 1},
                       std::span(data).first(3 * size_of(dtype))});
  }
  tensors.push_back({"scalar", DType::f32, {}, std::span(data).first(4)});
  tensors.push_back({"empty", DType::f32, {2, 0}, {}});
  const Metadata metadata{{"format", "pt"}, {"note", "with \"quotes\""}};
  const auto path = folder / "all.safetensors";
  const FileDigest digest = write_safetensors(path, tensors, metadata);

  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(digest, digest_of(file.bytes()));
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const TensorView& tensor : tensors) {
    const TensorView read = file.tensor(tensor.name);
    EXPECT_EQ(read.dtype, tensor.dtype);
    EXPECT_EQ(read.shape, tensor.shape);
    EXPECT_TRUE(
        std::equal(read.data.begin(), read.data.end(), tensor.data.begin(), tensor.data.end()))
        << tensor.name;
  }
}

TEST(Safetensors, WriterKeepsOrderAndAlignsTheData) {
  const TemporaryFolder folder;
  const std::vector<float> data(4);
  for (const char* name : {"z", "zz", "zzz", "zzzz", "zzzzz"}) {
    write_safetensors(folder / "a", std::vector{view_of(name, DType::f32, {4}, data),
                                                view_of("a", DType::f32, {2, 2}, data)});
    const auto file = SafetensorsFile::open(folder / "a");
    EXPECT_EQ(file.entries()[0].name, name);
    EXPECT_EQ(file.entries()[1].name, "a");
    EXPECT_EQ((file.entries()[0].data.data() - file.bytes().data()) % 8, 0);
  }
}

TEST(Safetensors, WriterRefuses) {
  const TemporaryFolder folder;
  const std::vector<float> data(4);
  const TensorView good = view_of("a", DType::f32, {4}, data);
  const auto write = [&](const TensorView& tensor) {
    return [&folder, tensor, good] { write_safetensors(folder / "x", std::vector{good, tensor}); };
  };
  expect_error(write(good), {"'a'", "appears twice"});
  expect_error(write(view_of("b", DType::f32, {5}, data)), {"'b'", "16 bytes", "expected 20"});
  expect_error(write(view_of("__metadata__", DType::f32, {4}, data)), {"__metadata__"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, UnsupportedDtypesAreListedAndRefusedWhenRead) {
  const TemporaryFolder folder;
  const std::string header = "{" + tensor_json("q", "F8_E4M3", "[3]", "[0,3]") + "," +
                             tensor_json("w", "U8", "[5]", "[3,8]") + "}";
  const auto file = SafetensorsFile::open(write_file(folder / "a", file_of(header, 8)));
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.entries()[0].dtype_name, "F8_E4M3");
  EXPECT_FALSE(file.entries()[0].dtype);
  expect_error([&] { file.tensor("q"); }, {"'q'", "F8_E4M3", "expected one of F32"});
  EXPECT_EQ(file.tensor("w").data.size(), 5u);
}

TEST(Safetensors, RefusesBadLengths) {
  expect_refused("", {"has 0 bytes", "at least the 8"});
  expect_refused("1234567", {"has 7 bytes", "at least the 8"});
  expect_refused(file_of("{}", 0).substr(0, 9), {"header length is 2", "ends 1 bytes after"});
  expect_refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
                 {"18446744073709551615", "at most 100000000"});
  expect_refused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), {"100000001", "at most 100000000"});
  expect_refused(std::string("\x00\xe1\xf5\x05\0\0\0\0{}", 10),
                 {"100000000", "ends 2 bytes after"});
  expect_refused(std::string(8, '\0'), {"length is 0 bytes"});
}

TEST(Safetensors, RefusesBadHeaders) {
  expect_refused(file_of("[]", 0), {"begins with '['"});
  expect_refused(file_of("{\"x\":", 0), {"not valid JSON"});
  expect_refused(file_of("{} {}", 0), {"not valid JSON"});
  expect_refused(file_of("{\"x\xff\":1}", 0), {"not valid JSON"});
  expect_refused(file_of(std::string(1 << 20, '{'), 0), {"header is not valid JSON"});
  expect_refused(file_of("{\"x\":" + std::string(1 << 20, '['), 0),
                 {"nests values 201 levels deep"});
  expect_refused(file_of("{\"x\":1}", 0), {"'x'", "is 1, expected an object"});
  expect_refused(file_of("{\"__metadata__\":1}", 0), {"__metadata__ is 1, expected an object"});
  expect_refused(file_of("{\"__metadata__\":{\"k\":1}}", 0), {"k is 1, expected a string"});
  const std::string x = tensor_json("x", "U8", "[4]", "[0,4]");
  expect_refused(file_of("{" + x + "," + x + "}", 4), {"names 'x' twice"});
}

TEST(Safetensors, RefusesBadTensors) {
  expect_refused(file_of(one("Q7", "[1]", "[0,1]"), 1),
                 {"'x'", "dtype is \"Q7\"", "of the format"});
  expect_refused(file_of("{\"x\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1), {"has no dtype"});
  expect_refused(file_of("{\"x\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1), {"has no shape"});
  expect_refused(file_of("{\"x\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1), {"has no data_offsets"});
  expect_refused(file_of(one("U8", "3", "[0,3]"), 3), {"shape is 3, expected a list"});
  expect_refused(file_of(one("U8", "[-3]", "[0,3]"), 3), {"shape[0] is -3"});
  expect_refused(file_of(one("U8", "[3.0]", "[0,3]"), 3), {"shape[0] is 3.0"});
  expect_refused(file_of(one("U8", "[9223372036854775808]", "[0,3]"), 3), {"9223372036854775808"});
  expect_refused(file_of(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), {"at most 8 numbers"});
  expect_refused(file_of(one("U8", "[3]", "[0,3,3]"), 3), {"at most 2 numbers"});
  expect_refused(file_of(one("U8", "[3]", "[3,0]"), 3), {"a pair [begin, end]"});
  // 2^32 x 2^32 would be 0 in 64 bits.
  expect_refused(file_of(one("U8", "[4294967296,4294967296]", "[0,0]"), 0), {"64 bits"});
  expect_refused(file_of(one("F32", "[4611686018427387904]", "[0,0]"), 0), {"64 bits"});
  expect_refused(file_of(one("F32", "[2]", "[0,7]"), 7), {"7 bytes, expected 8", "(2) of F32"});
  expect_refused(file_of(one("F4", "[3]", "[0,2]"), 2), {"whole number of bytes"});
}

TEST(Safetensors, RefusesBadLayouts) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{" + tensor_json("a", "U8", "[4]", a) + "," + tensor_json("b", "U8", "[4]", b) + "}";
  };
  EXPECT_NO_THROW({
    const TemporaryFolder folder;
    SafetensorsFile::open(write_file(folder / "good", file_of(two("[4,8]", "[0,4]"), 8)));
  });
  expect_refused(file_of(two("[0,4]", "[2,6]"), 6), {"'b' overlaps", "by 2 bytes"});
  expect_refused(file_of(two("[0,4]", "[0,4]"), 4), {"overlaps", "by 4 bytes"});
  expect_refused(file_of(two("[0,4]", "[6,10]"), 10), {"hole of 2 bytes before tensor 'b'"});
  expect_refused(file_of(two("[2,6]", "[6,10]"), 10), {"hole of 2 bytes before tensor 'a'"});
  expect_refused(file_of(two("[0,4]", "[4,8]"), 9), {"1 bytes after the last tensor"});
  // Truncated.
  expect_refused(file_of(two("[0,4]", "[4,8]"), 7), {"'b' ends at byte 8", "at most 7"});
}

TEST(SafetensorsWriter, RefusesWhatReadersWould) {
  const TemporaryFolder folder;
  const std::vector<TensorEntry> one{{"a", DType::f32, {2}}};
  SafetensorsWriter writer(folder / "short", one, {});
  expect_error([&] { writer.commit(); }, {"short: 0 bytes of data, expected 8"});
  const Metadata large{{"text", std::string(kMaxSafetensorsHeader, 'x')}};
  expect_error([&] { SafetensorsWriter(folder / "large", {}, large); },
               {"large: header would have 1000000", "expected at most 100000000"});
}

// Tensors are written in pieces of 64 MiB, and the caller is asked before each.
TEST(Safetensors, ALargeTensorIsWrittenInPieces) {
  const TemporaryFolder folder;
  std::vector<int32_t> data((size_t{64} << 18) + 1);
  std::iota(data.begin(), data.end(), 0);
  const TensorView view{"w", DType::i32, {std::ssize(data)}, std::as_bytes(std::span(data))};
  int calls = 0;
  write_safetensors(folder / "a", std::vector{view}, {}, [&] { ++calls; });
  EXPECT_EQ(calls, 3) << "before two pieces and at the end";
  const auto read = SafetensorsFile::open(folder / "a");
  EXPECT_TRUE(std::ranges::equal(read.tensor("w").data, view.data));
  const auto stop_before_the_second = [&] {
    if (++calls == 5) fail("enough");
  };
  expect_error(
      [&] { write_safetensors(folder / "b", std::vector{view}, {}, stop_before_the_second); },
      {"enough"});
  EXPECT_FALSE(std::filesystem::exists(folder / "b.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

}  // namespace
}  // namespace quern
