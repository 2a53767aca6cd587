// A folder with a small corpus, and trainings in it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "support/training.h"

namespace quern::testing_support {

namespace fs = std::filesystem;

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("quern_trainer_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_corpus(text(), 20000);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path text() const { return folder_ / "text.txt"; }
  Config config(const std::string& out = "run") const { return tiny_config(text(), folder_ / out); }
  std::string error_of(const Config& config) const {
    try {
      Recorded recorded;
      train(config, recorded);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

}  // namespace quern::testing_support
