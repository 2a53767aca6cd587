#include "run/checkpoint.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <numeric>

#include "io/checksum.h"
#include "support/faults.h"
#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// Contents that own their tensors.
struct Sample {
  std::vector<float> weight, moment;

  explicit Sample(size_t n = 1000) : weight(n), moment(2 * n) {
    std::iota(weight.begin(), weight.end(), 0.5F);
    std::iota(moment.begin(), moment.end(), -3.0F);
  }
  CheckpointContents at(int64_t step, std::string state = "{}") const {
    const auto n = static_cast<int64_t>(weight.size());
    return {step,
            {{"model.norm.weight", DType::f32, {n}, std::as_bytes(std::span(weight))}},
            {{"m", DType::f32, {2, n}, std::as_bytes(std::span(moment))}},
            std::move(state)};
  }
};

// A manifest of these fields and their checksum.
std::string manifest_of(const std::string& fields, const std::string& checksum) {
  return cat(fields.substr(0, fields.size() - 1), ",\"xxh3\":\"", checksum, "\"}");
}

void flip_bit(const fs::path& path, size_t position) {
  std::string bytes = read_file(path);
  bytes.at(position) = static_cast<char>(bytes[position] ^ 0x10);
  write_file(path, bytes);
}

TEST(Checkpoint, RoundTrips) {
  const TemporaryFolder run;
  const Sample sample;
  // Doubles and 64-bit integers come back to the last digit.
  const std::string state = R"({"seed":18446744073709551615,"loss":0.1,"best":null,"text":"ü\n"})";
  const fs::path path = write_checkpoint(run / "checkpoints", sample.at(1234, state));
  EXPECT_EQ(path, run / "checkpoints" / "step_00001234");
  const Checkpoint read = open_checkpoint(path);
  EXPECT_EQ(read.step, 1234);
  EXPECT_EQ(read.state_json, state);
  const TensorView weight = read.weights.tensor("model.norm.weight");
  EXPECT_TRUE(std::ranges::equal(weight.data, std::as_bytes(std::span(sample.weight))));
  EXPECT_EQ(read.moments.tensor("m").shape, (Shape{2, 1000}));
}

TEST(Checkpoint, HoldsTheGemmAlgorithms) {
  const TemporaryFolder run;
  const Sample sample;
  CheckpointContents contents = sample.at(3);
  EXPECT_EQ(open_checkpoint(write_checkpoint(run.path(), contents)).gemm_algorithms, "");
  contents.gemm_algorithms = "two\nlines\n";
  const fs::path path = write_checkpoint(run.path(), contents);
  EXPECT_EQ(read_file(path / "gemm_algorithms.txt"), contents.gemm_algorithms);
  EXPECT_EQ(open_checkpoint(path).gemm_algorithms, contents.gemm_algorithms);
  flip_bit(path / "gemm_algorithms.txt", 5);
  expect_error([&] { open_checkpoint(path); }, {"gemm_algorithms.txt", "checksum is", "expected"});
  fs::remove(path / "gemm_algorithms.txt");
  EXPECT_THROW(open_checkpoint(path), Error);
}

TEST(Checkpoint, ItsStateCanBeReplaced) {
  const TemporaryFolder run;
  const Sample sample;
  CheckpointContents contents = sample.at(5, R"({"best":1})");
  contents.gemm_algorithms = "x";
  const fs::path path = write_checkpoint(run.path(), contents);
  rewrite_checkpoint_state(path, R"({"best":2})");
  const Checkpoint read = open_checkpoint(path);
  EXPECT_EQ(read.state_json, R"({"best":2})");
  EXPECT_EQ(read.gemm_algorithms, "x");
  EXPECT_EQ(read.weights.tensor("model.norm.weight").shape, (Shape{1000}));
  expect_error([&] { rewrite_checkpoint_state(path, "{"); }, {"state is not valid JSON"});
  EXPECT_EQ(open_checkpoint(path).state_json, R"({"best":2})");
}

TEST(Checkpoint, TheSameStepIsReplaced) {
  const TemporaryFolder run;
  const Sample sample;
  write_checkpoint(run.path(), sample.at(5, R"({"try":1})"));
  const fs::path path = write_checkpoint(run.path(), sample.at(5, R"({"try":2})"));
  EXPECT_EQ(open_checkpoint(path).state_json, R"({"try":2})");
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1);
}

TEST(Checkpoint, EveryFlippedBitIsFound) {
  const TemporaryFolder run;
  const fs::path path = write_checkpoint(run.path(), Sample(40).at(7, R"({"loss":1.25})"));
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const size_t size = fs::file_size(path / name);
    for (size_t position = 0; position < size; position += 13) {
      flip_bit(path / name, position);
      expect_error([&] { open_checkpoint(path); }, {name, "checksum is", "expected"});
      flip_bit(path / name, position);
    }
  }
  EXPECT_NO_THROW(open_checkpoint(path));
}

TEST(Checkpoint, AChangedManifestIsFound) {
  const TemporaryFolder run;
  const fs::path path = write_checkpoint(run.path(), Sample(40).at(7, R"({"loss":1.25})"));
  const std::string manifest = read_file(path / "manifest.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = manifest;
    changed.replace(changed.find(from), from.size(), to);
    return [=] {
      write_file(path / "manifest.json", changed);
      open_checkpoint(path);
    };
  };
  EXPECT_NO_THROW(with("", "")());
  expect_error(with("1.25", "1.75"), {"manifest.json", "checksum of its content"});
  expect_error(with("\"step\": 7", "\"step\": 8"), {"manifest.json", "checksum of its content"});
  expect_error(with("\"format\": 1", "\"format\": 3"), {"format version is 3", "expected 1 or 2"});
  expect_error(with("{", ""), {"manifest.json", "not valid JSON"});
  expect_error(with(manifest, "[1]"), {"manifest.json", "expected an object"});
  expect_error(with(manifest, "{\"format\": \"x\"}"), {"manifest.json", "format is \"x\""});
  expect_error(with(manifest, ""), {"manifest.json", "not valid JSON"});
}

TEST(Checkpoint, CutAndMissingFilesAreFound) {
  const TemporaryFolder run;
  const fs::path path = write_checkpoint(run.path(), Sample().at(7));
  const auto size = fs::file_size(path / "model.safetensors");
  fs::resize_file(path / "model.safetensors", size - 1);
  expect_error([&] { open_checkpoint(path); },
               {"model.safetensors", cat("has ", size - 1, " bytes"), cat("expected ", size)});
  fs::remove(path / "model.safetensors");
  expect_error([&] { open_checkpoint(path); }, {"model.safetensors", "No such file"});
  fs::remove(path / "manifest.json");
  expect_error([&] { open_checkpoint(path); }, {path.string(), "is not a checkpoint"});
  expect_error([&] { open_checkpoint(run / "none"); }, {"none", "is not a checkpoint"});
}

TEST(Checkpoint, AFullDiskLeavesTheOlderOnes) {
  const TemporaryFolder run;
  const Sample sample;
  write_checkpoint(run.path(), sample.at(1));
  {
    const FileSizeLimit limit(6000);  // the weights fit (4 kB), the moments (8 kB) do not
    expect_error([&] { write_checkpoint(run.path(), sample.at(2)); },
                 {"step_00000002", "optimizer.safetensors", "File too large"});
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1);
  EXPECT_NO_THROW(open_checkpoint(*latest_checkpoint(run.path())));
}

TEST(Checkpoint, StateMustBeJson) {
  const TemporaryFolder run;
  expect_error([&] { write_checkpoint(run.path(), Sample().at(1, "{")); }, {"state"});
  expect_error([&] { write_checkpoint(run.path(), Sample().at(-1)); }, {"step is -1"});
  EXPECT_TRUE(fs::is_empty(run.path()));
}

TEST(Checkpoint, LatestIgnoresHalfWrittenAndForeignFolders) {
  const TemporaryFolder run;
  EXPECT_FALSE(latest_checkpoint(run / "none"));
  EXPECT_FALSE(latest_checkpoint(run.path()));
  write_checkpoint(run.path(), Sample().at(99999999));
  const fs::path latest = write_checkpoint(run.path(), Sample().at(100000000));  // 9 digits
  write_file(run / "step_200000000.tmp/model.safetensors", "half");
  write_file(run / "step_300000000/model.safetensors", "no manifest");
  write_file(run / "step_7/manifest.json", "not how we write 7");
  write_file(run / "notes.tmp/mine", "not ours to remove");
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{99999999, 100000000}));
  EXPECT_EQ(latest_checkpoint(run.path()), latest);

  write_checkpoint(run.path(), Sample().at(1));
  EXPECT_FALSE(fs::exists(run / "step_200000000.tmp"));
  EXPECT_TRUE(fs::exists(run / "notes.tmp/mine"));
}

TEST(Checkpoint, BestIsRemembered) {
  const TemporaryFolder run;
  EXPECT_FALSE(best_checkpoint(run.path()));
  write_checkpoint(run.path(), Sample().at(1));
  write_checkpoint(run.path(), Sample().at(2));
  mark_best(run.path(), 2);
  mark_best(run.path(), 1);
  EXPECT_EQ(best_checkpoint(run.path()), run / "step_00000001");
  fs::remove_all(run / "step_00000001");
  expect_error([&] { best_checkpoint(run.path()); }, {"step_00000001", "not there"});
  write_file(run / "best", "nonsense\n");
  expect_error([&] { best_checkpoint(run.path()); }, {"best", "nonsense"});
}

TEST(Checkpoint, RotationSparesTheBestAndTheKept) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 6; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  mark_best(run.path(), 2);
  mark_kept(run.path(), 1, "before the loss became non-finite");
  mark_kept(run.path(), 1, "again");
  EXPECT_EQ(unsealed(read_file(run / "kept"), ""),
            "step_00000001 before the loss became non-finite\n");
  rotate_checkpoints(run.path(), 2);
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{1, 2, 5, 6}));
  mark_best(run.path(), 6);
  mark_kept(run.path(), 5, "mine");
  rotate_checkpoints(run.path(), 1);
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{1, 5, 6}));
  for (const int64_t step : {1, 5, 6}) {
    EXPECT_NO_THROW(open_checkpoint(checkpoint_path(run.path(), step)));
  }
  expect_error([&] { rotate_checkpoints(run.path(), 0); }, {"keep is 0"});
}

TEST(Checkpoint, RotationCountsNoDamagedOne) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 5; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  flip_bit(run / "step_00000005/manifest.json", 20);
  fs::resize_file(run / "step_00000004/model.safetensors", 50);
  fs::remove(run / "step_00000003/optimizer.safetensors");
  rotate_checkpoints(run.path(), 1);
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(open_checkpoint(run / "step_00000002").step, 2);
}

// Each call of a save and its rotation fails once, by a full disk and by a damaged one.
TEST(Checkpoint, AFailedSaveOrRotationLeavesAWholeOne) {
  for (const int reason : {ENOSPC, EIO}) {
    int64_t calls = 0;
    for (int64_t at = 0; calls >= at; ++at) {
      const TemporaryFolder run;
      write_checkpoint(run.path(), Sample(10).at(1));
      calls = 0;
      try {
        const FaultyCalls faults([&](const std::string&, const std::string& path) {
          const bool ours = path.starts_with(run.path().string());
          return ours && calls++ == at ? reason : 0;
        });
        write_checkpoint(run.path(), Sample(10).at(2));
        rotate_checkpoints(run.path(), 1);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(run.path().string()), std::string::npos);
      }
      const std::optional<fs::path> latest = latest_checkpoint(run.path());
      ASSERT_TRUE(latest) << "call " << at;
      EXPECT_FALSE(checkpoint_damage(*latest)) << "call " << at;
    }
    EXPECT_GT(calls, 30);
  }
}

TEST(Checkpoint, AReplacedOneIsPutBackAfterACrash) {
  const TemporaryFolder run;
  write_checkpoint(run.path(), Sample(10).at(1));
  write_checkpoint(run.path(), Sample(10).at(2));
  fs::rename(run / "step_00000002", run / "step_00000002.old");  // killed between the renames
  write_file(run / "step_00000001.old/manifest.json", "{}");     // killed after the second one
  restore_replaced_checkpoints(run.path());
  EXPECT_EQ(open_checkpoint(*latest_checkpoint(run.path())).step, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 2);
}

// A mark that cannot be read is not an absent one: nothing may be removed or rewritten for it.
TEST(Checkpoint, AnUnreadableMarkIsNotAnAbsentOne) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 4; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  mark_best(run.path(), 1);
  mark_kept(run.path(), 2, "mine");
  const auto expect_untouched = [&](const std::string& mark, const std::string& reason) {
    expect_error([&] { rotate_checkpoints(run.path(), 1); }, {(run / mark).string(), reason});
    EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{1, 2, 3, 4}));
  };
  for (const std::string mark : {"best", "kept"}) {
    {
      const FaultyCalls unreadable([&](const std::string& call, const std::string& path) {
        return call == "open" && path == run / mark ? EACCES : 0;
      });
      expect_untouched(mark, "Permission denied");
      if (mark == "best") {
        EXPECT_THROW(best_checkpoint(run.path()), Error);
        EXPECT_THROW(set_aside_checkpoints_after(run.path(), 1), Error);
      } else {
        EXPECT_THROW(mark_kept(run.path(), 3, "new"), Error);
        EXPECT_THROW(set_aside_checkpoints_after(run.path(), 1), Error);
      }
    }
    fs::rename(run / mark, run / "aside");
    fs::create_directory(run / mark);
    expect_untouched(mark, "not a regular file");
    fs::remove(run / mark);
    fs::create_symlink(mark, run / mark);
    expect_untouched(mark, "Too many levels of symbolic links");
    fs::remove(run / mark);
    fs::rename(run / "aside", run / mark);
  }
  EXPECT_EQ(best_checkpoint(run.path()), run / "step_00000001");
  EXPECT_EQ(unsealed(read_file(run / "kept"), ""), "step_00000002 mine\n");
}

// Each bit of a mark flipped: the same mark, or an error with its name. Nothing is rotated away.
TEST(Checkpoint, ADamagedMarkIsAnError) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 4; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  mark_best(run.path(), 1);
  mark_kept(run.path(), 2, "mine");
  for (const std::string mark : {"best", "kept"}) {
    const std::string whole = read_file(run / mark);
    int64_t refused = 0;
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      write_file(run / mark, damaged);
      try {
        EXPECT_EQ(best_checkpoint(run.path()), run / "step_00000001") << "bit " << bit;
        mark_kept(run.path(), 2, "mine");  // is kept already
        EXPECT_EQ(read_file(run / mark), damaged) << "bit " << bit;
      } catch (const Error& error) {
        ++refused;
        EXPECT_NE(std::string(error.what()).find((run / mark).string()), std::string::npos);
      }
      EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{1, 2, 3, 4}));
    }
    EXPECT_GT(refused, 100);
    write_file(run / mark, whole);
  }
}

TEST(Checkpoint, OneThatCannotBeRemovedIsAWarning) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 3; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  {
    const FaultyCalls faults(
        [](const std::string& call, const std::string&) { return call == "unlinkat" ? EPERM : 0; });
    const std::vector<std::string> warnings = rotate_checkpoints(run.path(), 1);
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_NE(warnings[0].find("step_00000001.tmp: cannot be removed"), std::string::npos);
    EXPECT_NO_THROW(write_checkpoint(run.path(), Sample(10).at(4)));
  }
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{3, 4}));
  write_checkpoint(run.path(), Sample(10).at(5));
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 3) << "removed later";
}

TEST(Checkpoint, GoingBackSetsTheLaterOnesAside) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 4; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  mark_best(run.path(), 2);
  EXPECT_EQ(set_aside_checkpoints_after(run.path(), 4), 0);
  EXPECT_EQ(set_aside_checkpoints_after(run.path(), 2), 2);
  EXPECT_EQ(checkpoint_steps(run.path()), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(best_checkpoint(run.path()), run / "step_00000002");
  EXPECT_EQ(set_aside_checkpoints_after(run.path(), 1), 1);
  EXPECT_FALSE(best_checkpoint(run.path()));
  EXPECT_EQ(set_aside_checkpoints_after(run / "none", 1), 0);
  for (const char* later : {"step_00000002.later", "step_00000003.later", "step_00000004.later"}) {
    EXPECT_NO_THROW(open_checkpoint(run / later)) << later;
  }
  EXPECT_TRUE(remove_later_checkpoints(run.path()).empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1);
}

TEST(Checkpoint, GoingBackEndsTheMarksOfTheLaterOnes) {
  const TemporaryFolder run;
  for (int64_t step = 1; step <= 4; ++step) write_checkpoint(run.path(), Sample(10).at(step));
  mark_kept(run.path(), 2, "mine");
  mark_kept(run.path(), 4, "before the loss became non-finite");
  const std::string both = read_file(run / "kept");
  set_aside_checkpoints_after(run.path(), 4);
  EXPECT_EQ(read_file(run / "kept"), both);
  set_aside_checkpoints_after(run.path(), 3);
  EXPECT_EQ(unsealed(read_file(run / "kept"), ""), "step_00000002 mine\n");
  EXPECT_EQ(kept_checkpoints(run.path()), std::vector<fs::path>{run / "step_00000002"});
  set_aside_checkpoints_after(run.path(), 1);
  EXPECT_FALSE(fs::exists(run / "kept"));
}

TEST(Checkpoint, FoldersOfOtherNamesAreNone) {
  const TemporaryFolder run;
  write_checkpoint(run.path(), Sample(10).at(7));
  for (const char* name : {"step_x", "step_1", "step_-0000001", "step_99999999999999999999",
                           "other.tmp", "other.old", "other.later", "step_00000001.other"}) {
    write_file(run / name / "manifest.json", "{}");
  }
  EXPECT_EQ(checkpoint_steps(run.path()), std::vector<int64_t>{7});
  restore_replaced_checkpoints(run.path());
  write_checkpoint(run.path(), Sample(10).at(8));
  EXPECT_TRUE(remove_later_checkpoints(run.path()).empty());
  for (const char* name : {"other.tmp", "other.old", "other.later"}) {
    EXPECT_TRUE(fs::exists(run / name)) << name;
  }
  expect_error([&] { checkpoint_path(run.path(), -1); }, {"checkpoint: step is -1"});
}

TEST(Checkpoint, AFolderThatCannotBeReadOrMadeIsNamed) {
  const TemporaryFolder run;
  const fs::path file = write_file(run / "file", "text");
  expect_error([&] { checkpoint_steps(file); }, {"file: folder cannot be read: Not a directory"});
  expect_error([&] { write_checkpoint(file / "a", Sample(10).at(1)); }, {"a: cannot be created"});
  const FaultyCalls faults([](const std::string& call, const std::string& path) {
    return call == "mkdir" && path.ends_with(".tmp") ? ENOSPC : 0;
  });
  expect_error([&] { write_checkpoint(run.path(), Sample(10).at(1)); },
               {"step_00000001.tmp: cannot be created: No space"});
}

TEST(Checkpoint, AManifestWithoutAStateIsNone) {
  const TemporaryFolder run;
  const std::string fields = R"({"format":1,"step":1})";
  write_file(run / "manifest.json", manifest_of(fields, checksum_of(fields)));
  expect_error([&] { read_checkpoint_state(run.path()); }, {"manifest.json", "it has no state"});
}

TEST(Checkpoint, MarksThatCannotBeChangedAreNamed) {
  const TemporaryFolder run;
  write_file(run / "kept", "step_00000001 by hand, without a last line's end");
  mark_kept(run.path(), 2, "new");
  EXPECT_NE(read_file(run / "kept").find("end\nstep_00000002 new\n"), std::string::npos);
  mark_best(run.path(), 3);
  expect_error([&] { best_checkpoint(run.path()); }, {"step_00000003", "but is not there"});
  write_file(run / "step_00000004.later" / "a", "text");
  const FaultyCalls faults([](const std::string& call, const std::string&) {
    return call == "remove" || call == "unlinkat" ? EPERM : 0;
  });
  expect_error([&] { set_aside_checkpoints_after(run.path(), 1); }, {"best: cannot be removed"});
  const std::vector<std::string> warnings = remove_later_checkpoints(run.path());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("step_00000004.later: cannot be removed"), std::string::npos);
}

TEST(Checkpoint, UnfinishedOnesAreStepsWithAnExtension) {
  const TemporaryFolder run;
  write_checkpoint(run / "checkpoints", Sample(10).at(3));
  for (const char* name : {"step_00000004.tmp", "step_00000005.later", "notes.txt", "step_x.tmp"}) {
    fs::create_directory(run / "checkpoints" / name);
  }
  std::vector<std::string> names;
  for (const fs::path& path : unfinished_checkpoints(run / "checkpoints")) {
    names.push_back(path.filename().string());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"step_00000004.tmp", "step_00000005.later"}));
}

}  // namespace
}  // namespace quern
