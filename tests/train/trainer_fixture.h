// A folder with a small corpus, and trainings in it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "support/files.h"
#include "support/training.h"

namespace quern::testing_support {

namespace fs = std::filesystem;

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() { write_corpus(text(), 20000); }

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

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

}  // namespace quern::testing_support
