// Checkpoints that several ranks write, each a file of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "io/checksum.h"
#include "run/checkpoint.h"
#include "support/checkpoints.h"
#include "support/faults.h"
#include "support/files.h"
#include "support/thread_group.h"
#include "support/thread_ranks.h"
#include "tensor/context.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

constexpr int kRanks = 3;

class ShardedCheckpoint : public testing::Test {
 protected:
  ShardedCheckpoint() : values_(1200) { std::iota(values_.begin(), values_.end(), 0.5f); }

  TensorView view(const std::string& name, size_t begin, size_t size) const {
    return {name,
            DType::f32,
            {static_cast<int64_t>(size)},
            std::as_bytes(std::span(values_).subspan(begin, size))};
  }

  // The weights in three files, the moments in two: the last rank has none of them.
  CheckpointContents contents_of(size_t rank, int64_t step) const {
    CheckpointContents contents{step, {}, {}, rank == 0 ? R"({"of":"the first"})" : "{}"};
    contents.weights = {view(cat("w", 2 * rank), 100 * rank, 100),
                        view(cat("w", 2 * rank + 1), 300 + 100 * rank, 60)};
    if (rank < 2) contents.moments = {view(cat("m", rank), 600 + 100 * rank, 80)};
    contents.weights_file = {rank, 3};
    contents.moments_file.count = 2;
    contents.moments_file.number = rank < 2 ? std::optional(rank) : std::nullopt;
    return contents;
  }

  // The error of each rank, or "".
  std::vector<std::string> write(int64_t step,
                                 const std::function<fs::path(int)>& folder_of = nullptr) const {
    return run_thread_ranks(kRanks, {}, [&](Communicator& group) {
      Context context(kCpu);
      const ContextScope scope(context);
      try {
        write_checkpoint(folder_of ? folder_of(group.rank()) : folder_.path(),
                         contents_of(static_cast<size_t>(group.rank()), step), RankTeam(&group));
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    });
  }

  std::set<std::string> names_in(const fs::path& path) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  const std::vector<std::string> fine_ = std::vector<std::string>(kRanks);
  std::vector<float> values_;
  const TemporaryFolder folder_;
};

TEST_F(ShardedCheckpoint, HasAFileOfEachRankAndTheirIndices) {
  ASSERT_EQ(write(7), fine_);
  const fs::path path = checkpoint_path(folder_.path(), 7);
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"step_00000007"});
  EXPECT_EQ(names_in(path),
            (std::set<std::string>{
                "manifest.json", "model-00001-of-00003.safetensors",
                "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                "model.safetensors.index.json", "optimizer-00001-of-00002.safetensors",
                "optimizer-00002-of-00002.safetensors", "optimizer.safetensors.index.json"}));
  const auto index = nlohmann::json::parse(read_file(path / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 480);
  EXPECT_EQ(index["weight_map"]["w3"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"].size(), 6u);

  const Checkpoint read = open_checkpoint(path);
  EXPECT_EQ(read.state_json, R"({"of":"the first"})");
  EXPECT_EQ(read.weights.names(), (std::vector<std::string>{"w0", "w1", "w2", "w3", "w4", "w5"}));
  EXPECT_EQ(read.moments.names(), (std::vector<std::string>{"m0", "m1"}));
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (const TensorView& expected : contents_of(rank, 7).weights) {
      EXPECT_TRUE(std::ranges::equal(read.weights.tensor(expected.name).data, expected.data));
    }
  }
  rewrite_checkpoint_state(path, R"({"of":"later"})");
  EXPECT_EQ(open_checkpoint(path).state_json, R"({"of":"later"})");
}

TEST_F(ShardedCheckpoint, ReplacesOneOfOtherFiles) {
  write_checkpoint(folder_.path(), {7, {view("w", 0, 9)}, {view("m", 9, 9)}});
  ASSERT_EQ(write(7), fine_);
  EXPECT_EQ(open_checkpoint(checkpoint_path(folder_.path(), 7)).weights.names().size(), 6u);
  write_checkpoint(folder_.path(), {7, {view("w", 0, 9)}, {view("m", 9, 9)}});
  EXPECT_EQ(names_in(checkpoint_path(folder_.path(), 7)),
            (std::set<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
}

TEST_F(ShardedCheckpoint, AnyChangeOfAFileIsFound) {
  const fs::path path = checkpoint_path(folder_.path(), 1);
  const auto damage_after = [&](const std::function<void()>& change) {
    EXPECT_EQ(write(1), fine_);
    change();
    return checkpoint_damage(path).value_or("none");
  };
  write(1);
  for (const std::string& name : names_in(path)) {
    const std::string cut = damage_after([&] { fs::resize_file(path / name, 20); });
    EXPECT_NE(cut.find(name), std::string::npos) << name << ": " << cut;
    const std::string gone = damage_after([&] { fs::remove(path / name); });
    EXPECT_NE(gone.find(name == "manifest.json" ? "is not a checkpoint" : name), std::string::npos)
        << name << ": " << gone;
  }
  const std::string swapped = damage_after([&] {
    fs::rename(path / "model-00001-of-00003.safetensors", path / "other");
    fs::rename(path / "model-00002-of-00003.safetensors",
               path / "model-00001-of-00003.safetensors");
    fs::rename(path / "other", path / "model-00002-of-00003.safetensors");
  });
  EXPECT_NE(swapped.find("model-00001-of-00003.safetensors: checksum is"), std::string::npos)
      << swapped;
  const std::string two = damage_after([&] { write_safetensors(path / "model.safetensors", {}); });
  EXPECT_NE(two.find("has model.safetensors as well as model.safetensors.index.json"),
            std::string::npos)
      << two;
  EXPECT_EQ(damage_after([] {}), "none");
}

// Digests that fit, but other files than those of the manifest, or other tensors.
TEST_F(ShardedCheckpoint, AnIndexOfOtherFilesIsRefused) {
  const fs::path path = checkpoint_path(folder_.path(), 1);
  const std::string index = "model.safetensors.index.json";
  const auto refusal_of = [&](const std::string& tensor, const std::string& file) {
    EXPECT_EQ(write(1), fine_);
    auto map = nlohmann::json::parse(read_file(path / index));
    map["weight_map"][tensor] = file;
    write_file(path / index, map.dump());
    auto manifest = nlohmann::ordered_json::parse(read_file(path / "manifest.json"));
    const std::string text = map.dump();
    const FileDigest digest = digest_of(std::as_bytes(std::span(text)));
    manifest["files"][index] = {{"bytes", digest.bytes}, {"xxh3", hex(digest.xxh3)}};
    manifest.erase("xxh3");
    manifest["xxh3"] = checksum_of(manifest.dump());
    write_file(path / "manifest.json", manifest.dump());
    return checkpoint_damage(path).value_or("none");
  };
  write_safetensors(folder_ / "model-00004-of-00003.safetensors", std::vector{view("w9", 0, 10)});
  for (const auto& [file, reason] :
       {std::pair{"model-00004-of-00003.safetensors", "files: has no model-00004"},
        {"../model-00004-of-00003.safetensors", "expected a file of the same folder"},
        {"model-00001-of-00003.safetensors", "has no tensor 'w9', but"}}) {
    const std::string damage = refusal_of("w9", file);
    EXPECT_NE(damage.find(reason), std::string::npos) << damage;
  }
  const std::string moved = refusal_of("w2", "model-00001-of-00003.safetensors");
  EXPECT_NE(moved.find("has no tensor 'w2', but"), std::string::npos) << moved;
}

// A call that fails on any file: all ranks throw, those without the fault the name of the rank
// that met it; the checkpoint before is whole, and the next save succeeds.
TEST_F(ShardedCheckpoint, AFaultOfAnyRankIsAnErrorOfAll) {
  ASSERT_EQ(write(1), fine_);
  struct Fault {
    const char *call, *file;
    int rank;
  };
  for (const Fault& fault :
       {Fault{"mkdir", "step_00000002.tmp", 0},
        Fault{"write", "model-00001-of-00003.safetensors.tmp", 0},
        Fault{"open", "model-00002-of-00003.safetensors.tmp", 1},
        Fault{"fsync", "optimizer-00002-of-00002.safetensors.tmp", 1},
        Fault{"rename", "model-00003-of-00003.safetensors.tmp", 2},
        Fault{"write", "optimizer.safetensors.index.json.tmp", 0},
        Fault{"write", "manifest.json.tmp", 0}, Fault{"rename", "step_00000002.tmp", 0}}) {
    SCOPED_TRACE(cat(fault.call, ' ', fault.file));
    std::vector<std::string> errors;
    {
      const FaultyCalls full([&](const std::string& call, const std::string& file) {
        return call == fault.call && file.ends_with(fault.file) ? ENOSPC : 0;
      });
      errors = write(2);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      EXPECT_NE(error.find("No space left on device"), std::string::npos) << rank << ": " << error;
      const bool names_rank = error.find(cat("rank ", fault.rank, " of 3 on ")) == 0;
      EXPECT_EQ(names_rank, rank != fault.rank) << rank << ": " << error;
    }
    EXPECT_EQ(checkpoint_steps(folder_.path()), std::vector<int64_t>{1});
    EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"step_00000001"});
    EXPECT_FALSE(checkpoint_damage(checkpoint_path(folder_.path(), 1)));
  }
  EXPECT_EQ(write(2), fine_);
}

// With many gigabytes a rank, the others must not write theirs to the end first. Here the files of
// ranks 0 and 1 are pipes. That of rank 1 is opened when rank 0 has begun with its own, and that of
// rank 0 when rank 1 has failed: nothing but the header may come through.
TEST_F(ShardedCheckpoint, AFaultEndsTheWritingOfTheOthers) {
  const fs::path temporary = folder_ / "step_00000002.tmp";
  const fs::path pipe = temporary / "model-00001-of-00003.safetensors.tmp";
  const fs::path full_disk = temporary / "model-00002-of-00003.safetensors.tmp";
  std::string received;
  std::vector<std::string> errors;
  {
    const FaultyCalls full([&](const std::string& call, const std::string& file) {
      const auto is = [&](const fs::path& p) { return file.ends_with(p.filename().string()); };
      if (call == "open" && (is(pipe) || is(full_disk))) ::mkfifo(file.c_str(), 0600);
      return call == "write" && is(full_disk) ? ENOSPC : 0;
    });
    std::atomic<bool> written{false};
    std::thread reader([&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      const auto until = [&](const auto& holds) {
        while (!holds() && !written && std::chrono::steady_clock::now() < end) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      };
      until([&] { return fs::exists(pipe) && fs::exists(full_disk); });
      const int opened = ::open(full_disk.c_str(), O_RDONLY | O_NONBLOCK);
      until([&] { return !fs::exists(temporary / "in_progress"); });
      if (!written) received = read_file(pipe);
      ::close(opened);
    });
    errors = write(2);
    written = true;
    reader.join();
  }
  ASSERT_GE(received.size(), 8u);
  uint64_t header = 0;
  std::memcpy(&header, received.data(), sizeof(header));
  EXPECT_EQ(received.size(), sizeof(header) + header);
  for (const int rank : {0, 2}) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    EXPECT_EQ(error.find("rank 1 of 3 on "), 0u) << error;
    EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(ShardedCheckpoint, AFolderThatIsNotSharedIsAnError) {
  const fs::path other = folder_ / "of another machine";
  for (const bool left_by_a_crash : {false, true}) {
    if (left_by_a_crash) write_file(other / "step_00000002.tmp" / "in_progress", "another process");
    const auto errors =
        write(2, [&](int rank) { return rank == 1 ? other : folder_ / "of this one"; });
    for (const std::string& error : errors) {
      EXPECT_NE(
          error.find("step_00000002.tmp: is not the folder that the first rank has made; ranks "
                     "on several machines need a run folder that all of them share"),
          std::string::npos)
          << error;
    }
    EXPECT_TRUE(fs::is_empty(folder_ / "of this one"));
  }
}

// Each dies in turn, at any collective of the save: the checkpoint is whole or not there.
TEST_F(ShardedCheckpoint, ADeathLeavesAWholeOneOrNone) {
  bool survived = false, lost = false;
  for (int64_t at = 0; !survived; ++at) {
    const fs::path folder = folder_ / cat("death", at);
    const auto errors = run_thread_ranks(
        kRanks, {.dying_rank = static_cast<int>(at % kRanks), .dying_at = at},
        [&](Communicator& group) {
          Context context(kCpu);
          const ContextScope scope(context);
          write_checkpoint(folder, contents_of(static_cast<size_t>(group.rank()), 5),
                           RankTeam(&group));
          return std::string();
        });
    survived = errors == fine_;
    lost |= checkpoint_steps(folder).empty();
    if (const auto latest = latest_checkpoint(folder)) {
      EXPECT_FALSE(checkpoint_damage(*latest)) << "death at " << at;
    }
  }
  EXPECT_TRUE(lost);
}

}  // namespace
}  // namespace quern
