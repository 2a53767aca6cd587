// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes little-endian header
// length, a JSON header, then the tensors' bytes without holes, little-endian and row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace quern {

// Non-owning view of a named tensor in host memory. The bytes need not be aligned to dtype.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> data;  // shape.numel() * size_of(dtype) bytes
};

using Metadata = std::map<std::string, std::string>;

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit

class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string dtype_name;      // as in the file: "F32"
    std::optional<DType> dtype;  // empty for a dtype that Quern lacks ("F8_E4M3")
    Shape shape;
    std::span<const std::byte> data;
  };

  // Maps the file and checks the whole header; tensor data is read on access. Throws naming the
  // file and the error.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their data
  const Metadata& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return index_.contains(name); }
  // Throws naming the file when the tensor is missing or Quern lacks its dtype. The view is valid
  // as long as this object, or the object it was moved to.
  TensorView tensor(const std::string& name) const;

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  Metadata metadata_;
};

// Writes the tensors in the given order, atomically, without copying them. Throws on a duplicate
// name, data whose size does not match the shape, and a file that cannot be written. `proceed` is
// called before every piece of at most 64 MiB and at the end; when it throws, nothing is left of
// the file.
FileDigest write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                             const Metadata& metadata = {},
                             const std::function<void()>& proceed = nullptr);

// Name, dtype and shape of a tensor to write.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

int64_t byte_size(const TensorEntry& entry);

// Writes a file from pieces of data, so that no tensor must fit in memory.
class SafetensorsWriter {
 public:
  // Writes the header. Throws on a duplicate name, and as AtomicFile does.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorEntry> tensors,
                    const Metadata& metadata = {});

  // Appends the tensors' bytes, in the header's order, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  // Completes the file. Throws when the number of bytes differs from the header's.
  FileDigest commit();

 private:
  std::filesystem::path path_;
  AtomicFile file_;
  int64_t expected_ = 0, written_ = 0;  // bytes of data
};

}  // namespace quern
