// A copy of a golden case in a temporary folder, which tests may damage.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "support/files.h"

namespace quern::testing_support {

class GoldenCopy {
 public:
  explicit GoldenCopy(const std::string& name) {
    std::filesystem::copy(golden_folder() / name, path(), std::filesystem::copy_options::recursive);
  }

  std::filesystem::path path() const { return folder_ / "case"; }

  // Rewrites a safetensors file; `edit` may change, remove or add views. New data must outlive it.
  void edit(const std::string& file, const std::function<void(std::vector<TensorView>&)>& edit) {
    const auto target = path() / file;
    const SafetensorsFile old = SafetensorsFile::open(target);
    std::vector<TensorView> views;
    for (const SafetensorsFile::Entry& entry : old.entries()) {
      views.push_back(old.tensor(entry.name));
    }
    edit(views);
    write_safetensors(target, views);
  }

  // Replaces `before`, which the text file must contain, by `after`.
  void replace(const std::string& file, const std::string& before, const std::string& after) {
    std::string text = read_file(path() / file);
    const size_t place = text.find(before);
    if (place == std::string::npos) throw std::runtime_error(file + " lacks " + before);
    write_file(path() / file, text.replace(place, before.size(), after));
  }

  // Adds `amount` to one element of an f32 tensor.
  void add(const std::string& file, const std::string& tensor, size_t element, float amount) {
    std::vector<std::byte> bytes;
    edit(file, [&](std::vector<TensorView>& views) {
      for (TensorView& view : views) {
        if (view.name != tensor) continue;
        bytes.assign(view.data.begin(), view.data.end());
        float value = 0.0f;
        std::memcpy(&value, bytes.data() + element * sizeof value, sizeof value);
        value += amount;
        std::memcpy(bytes.data() + element * sizeof value, &value, sizeof value);
        view.data = bytes;
      }
    });
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace quern::testing_support
