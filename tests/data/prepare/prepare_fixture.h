// Fixture for tests of prepare.h: inputs in a folder, and access to the outputs.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "data/prepare/prepare.h"
#include "data/token_file.h"
#include "data/token_sidecar.h"
#include "support/files.h"

namespace quern::testing_support {

using Tokens = std::vector<int32_t>;

class Prepare : public testing::Test {
 protected:
  Prepare() {
    options_.out = out_;
    options_.validation_fraction = 0.0;
    options_.threads = 2;
  }
  std::string input(const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = write_file(folder_ / "in" / name, bytes);
    options_.inputs.push_back(path);
    return path;
  }
  // The tokens of one part's shards; removes the folder.
  Tokens tokens(const std::string& part) {
    Tokens all;
    for (int64_t shard = 0;; ++shard) {
      char name[40];
      std::snprintf(name, sizeof name, "%s_%05d.bin", part.c_str(), static_cast<int>(shard));
      if (!std::filesystem::exists(out_ / name)) return all;
      const TokenFile file = TokenFile::open(out_ / name);
      const auto sidecar = read_token_sidecar(out_ / name);
      EXPECT_TRUE(sidecar);
      check_token_sidecar(*sidecar, file);
      verify_token_file(*sidecar, out_ / name);
      const size_t before = all.size();
      all.resize(before + static_cast<size_t>(file.size()));
      file.copy(0, file.size(), all.data() + before);
    }
  }
  Tokens train() {
    std::filesystem::remove_all(out_);
    prepare_data(options_);
    return tokens("train");
  }
  // All output files by name.
  std::map<std::string, std::string> contents() {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out_)) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(out_)] = read_file(entry.path());
      }
    }
    return files;
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    expect_error([&] { prepare_data(options_); }, parts);
    EXPECT_FALSE(std::filesystem::exists(out_));
    EXPECT_FALSE(std::filesystem::exists(part_)) << "nothing worth keeping is kept";
    options_.inputs.clear();
  }
  static Tokens bytes(std::initializer_list<std::string> documents) {
    Tokens tokens;
    for (const std::string& document : documents) {
      for (const char c : document) tokens.push_back(static_cast<unsigned char>(c));
      tokens.push_back(256);
    }
    return tokens;
  }
  static std::string gpt2() { return source_folder() / "tests/fixtures/tokenizers/gpt2.json"; }

  TemporaryFolder folder_;
  std::filesystem::path out_ = folder_ / "out", part_ = folder_ / "out.part";
  PrepareOptions options_;
};

}  // namespace quern::testing_support
