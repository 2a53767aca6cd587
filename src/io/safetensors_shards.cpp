#include "io/safetensors_shards.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json_file.h"

namespace quern {

namespace fs = std::filesystem;

std::string safetensors_name(const std::string& stem) {
  return stem + ".safetensors";
}

std::string safetensors_index_name(const std::string& stem) {
  return stem + ".safetensors.index.json";
}

std::string safetensors_shard_name(const std::string& stem, size_t number, size_t count) {
  if (count == 1) return safetensors_name(stem);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number + 1, count);
}

bool SafetensorsShards::are_in(const fs::path& folder, const std::string& stem) {
  std::error_code ignored;  // an inaccessible file counts as missing
  return fs::exists(folder / safetensors_name(stem), ignored) ||
         fs::exists(folder / safetensors_index_name(stem), ignored);
}

SafetensorsShards SafetensorsShards::open(const fs::path& folder, const std::string& stem) {
  SafetensorsShards shards;
  std::error_code ignored;
  shards.path_ = folder / safetensors_name(stem);
  if (fs::exists(shards.path_, ignored)) {
    shards.add(SafetensorsFile::open(shards.path_));
    return shards;
  }
  shards.path_ = folder / safetensors_index_name(stem);
  const std::string index_name = shards.path_.filename().string();
  const std::map<std::string, std::string> index = read_safetensors_index(shards.path_);
  std::map<std::string, std::vector<std::string>> listed;
  for (const auto& [tensor, file] : index) listed[file].push_back(tensor);
  for (const auto& [name, tensors] : listed) {
    const fs::path path = folder / name;
    QUERN_CHECK(fs::exists(path, ignored), path.string(), ": shard is missing; ", index_name,
                " lists it for ", tensors.size(), " tensors");
    SafetensorsFile file = SafetensorsFile::open(path);
    for (const std::string& tensor : tensors) {
      QUERN_CHECK(file.contains(tensor), path.string(), ": has no tensor '", tensor, "', but ",
                  index_name, " says so");
    }
    for (const SafetensorsFile::Entry& entry : file.entries()) {
      const auto found = index.find(entry.name);
      QUERN_CHECK(found != index.end(), path.string(), ": holds tensor '", entry.name, "', which ",
                  index_name, " does not list");
      QUERN_CHECK(found->second == name, path.string(), ": holds tensor '", entry.name, "', which ",
                  index_name, " says is in ", found->second);
    }
    shards.add(std::move(file));
  }
  return shards;
}

void SafetensorsShards::add(SafetensorsFile file) {
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    file_of_[entry.name] = files_.size();
  }
  files_.push_back(std::move(file));
}

std::vector<std::string> SafetensorsShards::names() const {
  std::vector<std::string> names;
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsFile::Entry& entry : file.entries()) names.push_back(entry.name);
  }
  return names;
}

const SafetensorsFile& SafetensorsShards::file_of(const std::string& name) const {
  const auto found = file_of_.find(name);
  QUERN_CHECK(found != file_of_.end(), path_.string(), ": has no tensor '", name, "'");
  return files_[found->second];
}

FileDigest write_safetensors_index(const fs::path& folder, const std::string& stem,
                                   const std::vector<std::vector<TensorEntry>>& files) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const TensorEntry& entry : files[i]) {
      map[entry.name] = safetensors_shard_name(stem, i, files.size());
      total += byte_size(entry);
    }
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return write_file_atomically(folder / safetensors_index_name(stem), index.dump(2) + "\n");
}

std::map<std::string, std::string> read_safetensors_index(const fs::path& path) {
  const JsonFile index(path);
  const JsonPlace map = index.root().object("weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map.json.items()) {
    const std::string& name = JsonPlace{file, cat(map.path, tensor)}.text();
    QUERN_CHECK(!name.empty() && fs::path(name).filename() == name && name != ".." && name != ".",
                path.string(), ": tensor '", tensor, "' is in '", name,
                "', expected a file of the same folder");
    files[tensor] = name;
  }
  return files;
}

}  // namespace quern
