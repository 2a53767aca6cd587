#include "run/run_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "run/checkpoint.h"
#include "support/faults.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

Config config_in(const fs::path& path) {
  Config config;
  config.run.out = path.string();
  return config;
}

void write_step(const fs::path& run, int64_t step) {
  static constexpr std::array<float, 4> kValues{1, 2, 3, 4};
  const TensorView values{"v", DType::f32, {4}, std::as_bytes(std::span(kValues))};
  write_checkpoint(run / "checkpoints", {step, {values}, {values}});
}

TEST(RunFolder, OnlyOneProcessTrainsInIt) {
  const TemporaryFolder folder;
  const fs::path path = folder / "runs/a";
  {
    const RunFolder first = RunFolder::create(config_in(path));
    expect_error([&] { RunFolder::create(config_in(path)); }, {path.string(), "exists already"});
    RunFolder second = RunFolder::open(path);  // reading is allowed
    expect_error([&] { second.lock(); }, {"another process is training in", path.string()});
  }
  RunFolder third = RunFolder::open(path);
  EXPECT_NO_THROW(third.lock());
}

TEST(RunFolder, ADeletedOrReplacedOneIsNoticed) {
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(config_in(folder / "a"));
  EXPECT_NO_THROW(run.check_there());
  fs::rename(folder / "a", folder / "b");
  expect_error([&] { run.check_there(); }, {(folder / "a").string(), "gone or another"});
  fs::create_directory(folder / "a");
  expect_error([&] { run.check_there(); }, {(folder / "a").string(), "gone or another"});
}

TEST(RunFolder, TheFolderOfRunsIsNone) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "runs/empty");
  expect_error([&] { RunFolder::open(folder / "runs"); },
               {"not a run folder: it has no config.toml"});
  RunFolder::create(config_in(folder / "runs/a"));
  expect_error([&] { RunFolder::open(folder / "runs"); },
               {cat("did you mean ", (folder / "runs/a").string(), "?")});
}

TEST(RunFolder, ResumePassesOverDamagedCheckpoints) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a", checkpoints = path / "checkpoints";
  const RunFolder run = RunFolder::create(config_in(path));
  for (int64_t step = 8; step <= 11; ++step) write_step(path, step);
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) { warnings.push_back(text); };
  EXPECT_EQ(checkpoint_to_resume(path, warn), checkpoint_path(checkpoints, 11));
  fs::resize_file(checkpoint_path(checkpoints, 11) / "model.safetensors", 5);
  fs::remove(checkpoint_path(checkpoints, 10) / "optimizer.safetensors");
  // A chosen one is not replaced by another.
  expect_error([&] { checkpoint_to_resume(checkpoint_path(checkpoints, 11), warn); },
               {"has 5 bytes", "newest whole checkpoint before it", "step_00000009"});
  {
    const FaultyCalls unreadable([&](const std::string& call, const std::string& file) {
      return call == "open" && file.ends_with("11/model.safetensors") ? EMFILE : 0;
    });
    expect_error([&] { checkpoint_to_resume(path, warn); }, {"Too many open files"});
  }
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(checkpoint_to_resume(path, warn), checkpoint_path(checkpoints, 9));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("has 5 bytes"), std::string::npos) << warnings[0];
  EXPECT_EQ(checkpoint_steps(checkpoints), (std::vector<int64_t>{8, 9}));
  EXPECT_TRUE(fs::exists(checkpoints / "step_00000011.damaged"));
  for (int64_t step = 8; step <= 9; ++step) {
    fs::remove(checkpoint_path(checkpoints, step) / "model.safetensors");
  }
  expect_error([&] { checkpoint_to_resume(path, warn); }, {"step_00000009", "No such file"});
  EXPECT_EQ(checkpoint_steps(checkpoints), (std::vector<int64_t>{8, 9}));
}

// Shells complete a folder's name with a slash.
TEST(RunFolder, ACheckpointMayEndWithASlash) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a", checkpoints = path / "checkpoints";
  RunFolder::create(config_in(path));
  write_step(path, 99'999'999);
  write_step(path, 100'000'000);  // its name has one digit more
  const fs::path newest = checkpoint_path(checkpoints, 100'000'000), with_slash = newest / "";
  EXPECT_EQ(find_checkpoint(with_slash, false), newest);
  EXPECT_EQ(run_of(with_slash), path);
  EXPECT_EQ(RunFolder::open(with_slash).path(), path);
  const auto ignore = [](const std::string&) {};
  EXPECT_EQ(checkpoint_to_resume(with_slash, ignore), newest);
  fs::resize_file(newest / "model.safetensors", 5);
  expect_error([&] { checkpoint_to_resume(with_slash, ignore); },
               {"newest whole checkpoint before it", "step_99999999"});
  EXPECT_EQ(checkpoint_to_resume(path, ignore), checkpoint_path(checkpoints, 99'999'999));
}

TEST(RunFolder, TakesWhatAKilledOneLeftAndNoMore) {
  const TemporaryFolder folder;
  for (const char* name : {".lock", "config.toml.tmp"}) write_file(folder / "a" / name, "");
  fs::create_directory(folder / "a/checkpoints");
  EXPECT_NO_THROW(RunFolder::create(config_in(folder / "a")));
  write_file(folder / "b/checkpoints/step_00000001/manifest.json", "{}");
  expect_error([&] { RunFolder::create(config_in(folder / "b")); }, {"b exists already"});
  write_file(folder / "c/notes.txt", "");
  expect_error([&] { RunFolder::create(config_in(folder / "c")); }, {"c exists already"});
}

TEST(RunFolder, OneThatCannotBeReadIsNotTaken) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "a/checkpoints");
  const FaultyCalls unreadable([&](const std::string& call, const std::string& path) {
    return call == "readdir" && path.ends_with("a/checkpoints") ? EIO : 0;
  });
  expect_error([&] { RunFolder::create(config_in(folder / "a")); }, {"a exists already"});
}

TEST(RunFolder, HasANameWithoutOne) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const fs::path dated = RunFolder::create(Config()).path();
  EXPECT_EQ(dated.parent_path(), "runs");
  EXPECT_EQ(RunFolder::create(config_in("here")).path(), "here");
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(folder / "here/config.toml") && fs::exists(folder.path() / dated));
}

TEST(RunFolder, AHuggingFaceFolderIsNone) {
  expect_error([] { RunFolder::open(golden_folder() / "mha"); },
               {"is a Hugging Face folder, expected a run folder", "quern import"});
}

TEST(RunFolder, KeepsTheSamplesUpToAStep) {
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(config_in(folder / "a"));
  EXPECT_FALSE(run.keep_samples_until(5));
  const std::string kept = "--- step 4\n--- step 9 or so\n--- step 5\ntext\n--- step 5\ntext";
  write_file(run.samples(), kept);
  EXPECT_TRUE(run.keep_samples_until(5));
  EXPECT_TRUE(run.keep_samples_until(4));
  EXPECT_EQ(read_file(run.samples()), "--- step 4\n--- step 9 or so\n");
}

TEST(RunFolder, ASamplesTextIsNoMark) {
  EXPECT_EQ(sample_record(4, "a\n\n--- step x\n"), "--- step 4\na\n\n--- step x\n\n");
  const std::string record = sample_record(4, "--- step 9\n--- step 10");
  EXPECT_EQ(record, "--- step 4\n --- step 9\n --- step 10\n");
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(config_in(folder / "a"));
  write_file(run.samples(), record);
  EXPECT_FALSE(run.keep_samples_until(5));
  EXPECT_EQ(read_file(run.samples()), record);
}

}  // namespace
}  // namespace quern
