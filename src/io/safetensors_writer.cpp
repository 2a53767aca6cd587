#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace quern {

int64_t byte_size(const TensorEntry& entry) {
  return safetensors_bytes(cat("tensor '", entry.name, "'"), entry.shape,
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
        {"dtype", safetensors_name(tensor.dtype)},
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
                             const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  for (const TensorView& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    const int64_t expected = byte_size(entries.back());
    QUERN_CHECK(static_cast<int64_t>(tensor.data.size()) == expected, path.string(), ": tensor '",
                tensor.name, "' has ", tensor.data.size(), " bytes, expected ", expected,
                " for shape ", tensor.shape, " of ", tensor.dtype);
  }
  SafetensorsWriter writer(path, entries, metadata);
  for (const TensorView& tensor : tensors) writer.write(tensor.data);
  return writer.commit();
}

}  // namespace quern
