// Writes a safetensors file whose data arrives in pieces, so that no tensor need be in memory
// whole.
#pragma once

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace quern {

// A tensor that a file is to hold.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

int64_t byte_size(const TensorEntry& entry);

class SafetensorsWriter {
 public:
  // Writes the header. Throws on a name that appears twice, and as AtomicFile does.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorEntry> tensors,
                    const Metadata& metadata = {});

  // The tensors' bytes in the order given, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  // The file is there after this. Throws when the bytes written are not those of the tensors.
  FileDigest commit();

 private:
  std::filesystem::path path_;
  AtomicFile file_;
  int64_t expected_ = 0, written_ = 0;  // bytes of data
};

}  // namespace quern
