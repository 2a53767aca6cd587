#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "io/json_file.h"
#include "io/python_line.h"

namespace quern {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

namespace {

using Json = nlohmann::json;
using Entry = SafetensorsFile::Entry;

struct NamedType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};

// All dtypes of the format: a file with a dtype that Quern lacks still lists all tensors and reads
// the others.
constexpr std::array<NamedType, 20> kTypes{{
    {"F32", 32, DType::f32},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16},
    {"F64", 64, DType::f64},
    {"I32", 32, DType::i32},
    {"I64", 64, DType::i64},
    {"U16", 16, DType::u16},
    {"U8", 8, DType::u8},
    {"BOOL", 8, DType::boolean},
    {"I8", 8, {}},
    {"I16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
}};

const NamedType* find_type(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &NamedType::name);
  return found == kTypes.end() ? nullptr : &*found;
}

std::string_view name_in_file(DType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  fail(cat("safetensors: no name for dtype ", dtype));
}

// Bytes of a tensor. Errors (a fraction, or overflow of 64 bits) begin with `where`.
int64_t bytes_of(const std::string& where, const Shape& shape, int64_t bits) {
  int64_t total = bits;
  for (const int64_t dim : shape) {
    QUERN_CHECK(!__builtin_mul_overflow(total, dim, &total), where, ": shape ", shape,
                " has more elements than 64 bits can count");
  }
  QUERN_CHECK(total % 8 == 0, where, ": shape ", shape, " of ", bits,
              "-bit elements is not a whole number of bytes");
  return total / 8;
}

// The header's text. Its length is validated first.
std::string_view header_text(const std::string& path, std::span<const std::byte> bytes) {
  constexpr uint64_t kPrefix = sizeof(uint64_t);
  QUERN_CHECK(bytes.size() >= kPrefix, path, ": has ", bytes.size(),
              " bytes, expected at least the 8 of a safetensors header's length");
  uint64_t length;
  std::memcpy(&length, bytes.data(), kPrefix);
  QUERN_CHECK(length <= uint64_t{kMaxSafetensorsHeader}, path, ": header length is ", length,
              " bytes, expected at most ", kMaxSafetensorsHeader, lfs_hint(bytes));
  QUERN_CHECK(length <= bytes.size() - kPrefix, path, ": header length is ", length,
              " bytes, but the file ends ", bytes.size() - kPrefix, " bytes after it");
  QUERN_CHECK(length > 0, path, ": header length is 0 bytes, expected at least 2: {}");
  const char first = static_cast<char>(bytes[kPrefix]);
  QUERN_CHECK(first == '{', path, ": header begins with '", first, "', expected '{'");
  return {reinterpret_cast<const char*>(bytes.data()) + kPrefix, static_cast<size_t>(length)};
}

Metadata read_metadata(const JsonPlace& members) {
  Metadata metadata;
  for (const auto& [key, value] : members.json.items()) {
    metadata[key] = JsonPlace{value, cat(members.path, key)}.text();
  }
  return metadata;
}

// At most `most` whole numbers from 0 to 2^63 - 1.
std::vector<int64_t> read_numbers(const JsonPlace& place, size_t most) {
  if (!place.json.is_array() || place.json.size() > most) {
    place.refuse(cat("a list of at most ", most, " numbers"));
  }
  std::vector<int64_t> numbers;
  for (const JsonPlace& number : place.list()) numbers.push_back(number.count());
  return numbers;
}

Entry read_entry(const std::string& name, const JsonPlace& members,
                 std::span<const std::byte> data) {
  const std::string where = members.where();
  const JsonPlace dtype = members.at("dtype");
  const NamedType* type = find_type(dtype.text());
  if (!type) dtype.refuse("a dtype of the format, such as \"F32\"");

  Shape shape;
  for (const int64_t dim : read_numbers(members.at("shape"), kMaxDims)) shape.push_back(dim);
  const JsonPlace range = members.at("data_offsets");
  const std::vector<int64_t> offsets = read_numbers(range, 2);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) range.refuse("a pair [begin, end]");
  const int64_t begin = offsets[0], end = offsets[1];
  QUERN_CHECK(end <= static_cast<int64_t>(data.size()), where, " ends at byte ", end,
              " of the data, expected at most ", data.size(), ", which the file holds");
  const int64_t expected = bytes_of(where, shape, type->bits);
  QUERN_CHECK(end - begin == expected, where, " has ", end - begin, " bytes, expected ", expected,
              " for shape ", shape, " of ", type->name);
  return {name, std::string(type->name), type->dtype, shape,
          data.subspan(static_cast<size_t>(begin), static_cast<size_t>(expected))};
}

// The tensors, sorted by position, must tile the data exactly.
void check_tiling(const std::string& path, const std::vector<Entry>& entries,
                  std::span<const std::byte> data) {
  const std::byte* expected = data.data();
  for (const Entry& entry : entries) {
    const int64_t gap = entry.data.data() - expected;
    QUERN_CHECK(gap >= 0, path, ": tensor '", entry.name, "' overlaps the one before it by ", -gap,
                " bytes");
    QUERN_CHECK(gap == 0, path, ": hole of ", gap, " bytes before tensor '", entry.name, "'");
    expected += entry.data.size();
  }
  const int64_t rest = data.data() + data.size() - expected;
  QUERN_CHECK(rest == 0, path, ": ", rest, " bytes after the last tensor");
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file(MappedFile::open(path));
  const std::string name = path.string();
  const std::string_view header = header_text(name, file.bytes());
  const std::span<const std::byte> data = file.bytes().subspan(sizeof(uint64_t) + header.size());

  const Json json = parse_distinct_json(header, name + ": header");
  for (const auto& [key, value] : json.items()) {
    const bool metadata = key == "__metadata__";
    const JsonPlace place{value,
                          metadata ? cat(name, ": ", key) : cat(name, ": tensor '", key, "'")};
    if (!value.is_object()) place.refuse("an object");
    const JsonPlace members{value, place.path + ": "};
    if (metadata) file.metadata_ = read_metadata(members);
    if (!metadata) file.entries_.push_back(read_entry(key, members, data));
  }
  std::sort(file.entries_.begin(), file.entries_.end(), [](const Entry& a, const Entry& b) {
    return a.data.data() != b.data.data() ? a.data.data() < b.data.data()
                                          : a.data.size() < b.data.size();
  });
  check_tiling(name, file.entries_, data);
  for (size_t i = 0; i < file.entries_.size(); ++i) file.index_[file.entries_[i].name] = i;
  return file;
}

TensorView SafetensorsFile::tensor(const std::string& name) const {
  const auto found = index_.find(name);
  QUERN_CHECK(found != index_.end(), path().string(), ": has no tensor '", name, "'");
  const Entry& entry = entries_[found->second];
  QUERN_CHECK(entry.dtype, path().string(), ": tensor '", name, "' has dtype ", entry.dtype_name,
              ", expected one of F32, BF16, F16, F64, I32, I64, U16, U8, BOOL");
  return {entry.name, *entry.dtype, entry.shape, entry.data};
}

int64_t byte_size(const TensorEntry& entry) {
  return bytes_of(cat("tensor '", entry.name, "'"), entry.shape,
                  8 * static_cast<int64_t>(size_of(entry.dtype)));
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const TensorEntry> tensors, const Metadata& metadata)
    : path_(path), file_(path) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::unordered_set<std::string> names{"__metadata__"};  // reserved by the format
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const TensorEntry& tensor : tensors) {
    QUERN_CHECK(names.insert(tensor.name).second, path.string(), ": tensor '", tensor.name,
                "' appears twice");
    const int64_t end = expected_ + byte_size(tensor);
    header[tensor.name] = {
        {"dtype", name_in_file(tensor.dtype)},
        {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
        {"data_offsets", {expected_, end}}};
    expected_ = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins 8-byte aligned
  const uint64_t length = text.size();
  QUERN_CHECK(length <= uint64_t{kMaxSafetensorsHeader}, path.string(), ": header would have ",
              length, " bytes, expected at most ", kMaxSafetensorsHeader);
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(text);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  file_.write(bytes);
  written_ += static_cast<int64_t>(bytes.size());
}

FileDigest SafetensorsWriter::commit() {
  QUERN_CHECK(written_ == expected_, path_.string(), ": ", written_, " bytes of data, expected ",
              expected_);
  return file_.commit();
}

FileDigest write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                             const Metadata& metadata, const std::function<void()>& proceed) {
  constexpr size_t kPiece = size_t{64} << 20;
  std::vector<TensorEntry> entries;
  for (const TensorView& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    const int64_t expected = byte_size(entries.back());
    QUERN_CHECK(static_cast<int64_t>(tensor.data.size()) == expected, path.string(), ": tensor '",
                tensor.name, "' has ", tensor.data.size(), " bytes, expected ", expected,
                " for shape ", tensor.shape, " of ", tensor.dtype);
  }
  SafetensorsWriter writer(path, entries, metadata);
  for (const TensorView& tensor : tensors) {
    for (size_t begin = 0; begin < tensor.data.size(); begin += kPiece) {
      if (proceed) proceed();
      writer.write(tensor.data.subspan(begin, std::min(kPiece, tensor.data.size() - begin)));
    }
  }
  if (proceed) proceed();
  return writer.commit();
}

}  // namespace quern
