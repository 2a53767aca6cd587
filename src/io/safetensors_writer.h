// Writes a safetensors file from pieces of data, so that no tensor must fit in memory.
#pragma once

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace quern {

// Name, dtype and shape of a tensor to write.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

int64_t byte_size(const TensorEntry& entry);

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
