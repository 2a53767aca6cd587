// Tensors in one safetensors file or in several with an index, named as Hugging Face names them:
// model.safetensors, or model-00001-of-00002.safetensors and so on with
// model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace quern {

std::string safetensors_name(const std::string& stem);        // "model.safetensors"
std::string safetensors_index_name(const std::string& stem);  // "model.safetensors.index.json"
// The name of file `number` (from 0) of `count`: "model-00001-of-00002.safetensors"; with a count
// of 1 "model.safetensors".
std::string safetensors_shard_name(const std::string& stem, size_t number, size_t count);

class SafetensorsShards {
 public:
  // Whether the folder has the file or the index.
  static bool are_in(const std::filesystem::path& folder, const std::string& stem);
  // Opens folder/stem.safetensors, or else every file that the index lists. Throws naming the file
  // when one is missing or malformed, when the index and the files do not list the same tensors,
  // and when a tensor occurs twice.
  static SafetensorsShards open(const std::filesystem::path& folder, const std::string& stem);

  // The one file, or the index.
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;  // in the order of the files and their data
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  // Throws as SafetensorsFile::tensor does. Valid as long as this object, or the one it was moved
  // to.
  TensorView tensor(const std::string& name) const { return file_of(name).tensor(name); }
  // Throws naming path() when there is no such tensor.
  const SafetensorsFile& file_of(const std::string& name) const;

 private:
  void add(SafetensorsFile file);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;
};

// The index of files that hold the tensors named. Returns its digest.
FileDigest write_safetensors_index(const std::filesystem::path& folder, const std::string& stem,
                                   const std::vector<std::vector<TensorEntry>>& files);

// The file of each tensor, by the tensor's name. Throws when one lies in another folder.
std::map<std::string, std::string> read_safetensors_index(const std::filesystem::path& path);

}  // namespace quern
