// A folder with a small corpus, and trainings in it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "run/checkpoint.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/training.h"

namespace quern::testing_support {

namespace fs = std::filesystem;

// The results of a training, compared bit for bit.
struct TrainingResult {
  std::vector<double> losses, validations;
  std::string weights, moments;  // of the last checkpoint
  bool operator==(const TrainingResult&) const = default;
};

inline TrainingResult outcome_of(const Config& c, const Recorded& recorded) {
  const fs::path last = checkpoint_path(fs::path(c.run.out) / "checkpoints", c.train.steps);
  const Checkpoint checkpoint = open_checkpoint(last);
  TrainingResult outcome{recorded.losses(), recorded.validations, content_of(checkpoint.weights),
                         content_of(checkpoint.moments)};
  EXPECT_GT(std::min(outcome.weights.size(), outcome.moments.size()), 10000u);
  return outcome;
}

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() { write_corpus(text(), 20000); }

  fs::path text() const { return folder_ / "text.txt"; }
  Config config(const std::string& out = "run") const { return tiny_config(text(), folder_ / out); }
  // A folder of texts of 1 to 90 bytes.
  std::string write_documents() const {
    for (int64_t i = 0; i < 120; ++i) {
      write_corpus(folder_ / "documents" / cat(i, ".txt"), 1 + i * i % 90);
    }
    return (folder_ / "documents").string();
  }
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
