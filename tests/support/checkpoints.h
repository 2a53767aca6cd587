// The content of checkpoints, in any number of files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

#include "run/checkpoint.h"

namespace quern::testing_support {

// The bytes of all tensors, in the order of their names, which come before them.
inline std::string content_of(const SafetensorsShards& files) {
  std::vector<std::string> names = files.names();
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) {
    const TensorView tensor = files.tensor(name);
    all += cat(name, ' ', tensor.shape, '\n');
    all.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return all;
}

inline std::string saved_weights(const std::filesystem::path& checkpoint) {
  return content_of(open_checkpoint(checkpoint).weights);
}

}  // namespace quern::testing_support
