#include "run/tensorboard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "run/metrics.h"
#include "support/faults.h"
#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using namespace std::string_literals;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRC algorithms.
TEST(Crc32c, KnownVectors) {
  std::string up;
  for (int i = 0; i < 32; ++i) up += static_cast<char>(i);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(up), 0x46DD794Eu);
  EXPECT_EQ(crc32c(std::string(up.rbegin(), up.rend())), 0x113FDB5Cu);
  EXPECT_EQ(crc32c(""), 0u);
}

// The length, its masked CRC, the data, its masked CRC; masked by hand from the vector above:
// rotate(0xE3069283, 15) = 0x2507c60d, and 0x2507c60d + 0xa282ead8 = 0xc78ab0e5.
TEST(FramedRecord, HasLengthAndMaskedCrcs) {
  const std::string record = framed_record("123456789");
  ASSERT_EQ(record.size(), 8 + 4 + 9 + 4u);
  EXPECT_EQ(hex(record.substr(0, 8)), "0900000000000000");
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(hex(record.substr(21)), "e5b08ac7");
}

TEST(Event, IsProtobuf) {
  // 09 double 1.0; 1a string "brain.Event:2".
  EXPECT_EQ(hex(version_event(1.0)), "09000000000000f03f1a0d627261696e2e4576656e743a32");
  // 10 step 300 = ac02; 2a summary of 11 bytes: 0a value of 9 bytes: 0a tag "mf", 15 float 0.5.
  EXPECT_EQ(hex(scalars_event(300, 1.0, {{"mf", 0.5f}})),
            "09000000000000f03f10ac022a0b0a090a026d66150000003f");
  // 3a session log: 08 status START = 01.
  EXPECT_EQ(hex(restart_event(7, 1.0)), "09000000000000f03f10073a020801");
}

TEST(TensorBoardLog, AResumedRunHasASecondFileThatSortsLater) {
  const TemporaryFolder folder;
  TensorBoardLog(folder.path(), -1, 1000.0).write(1, 1000.0, {{"loss", 2.0f}});
  TensorBoardLog(folder.path(), 1, 1000.5).write(2, 1001.0, {{"loss", 1.0f}});
  const std::vector<fs::path> files = event_files(folder.path());
  ASSERT_EQ(files.size(), 2u);
  const std::string first = read_file(files[0]), second = read_file(files[1]);
  EXPECT_EQ(first, framed_record(version_event(1000.0)) +
                       framed_record(scalars_event(1, 1000.0, {{"loss", 2.0f}})));
  EXPECT_EQ(second, framed_record(version_event(1000.5)) + framed_record(restart_event(2, 1000.5)) +
                        framed_record(scalars_event(2, 1001.0, {{"loss", 1.0f}})));
}

// It was killed before its first checkpoint, so none of the first file's steps count.
TEST(TensorBoardLog, ARunThatBeginsAgainReplacesAllSteps) {
  const TemporaryFolder folder;
  TensorBoardLog(folder.path(), -1, 1000.0).write(1, 1000.0, {{"loss", 2.0f}});
  TensorBoardLog(folder.path(), -1, 1001.0);
  EXPECT_EQ(read_file(event_files(folder.path()).at(1)),
            framed_record(version_event(1001.0)) + framed_record(restart_event(0, 1001.0)));
}

TEST(TensorBoardLog, AFolderThatIsNotThereIsNamed) {
  expect_error([] { TensorBoardLog("/no/such/folder", -1, 1000.0); }, {"/no/such/folder"});
}

TEST(MetricsLog, WritesEventsOnlyWhenAsked) {
  const TemporaryFolder folder;
  StepMetrics m;
  m.step = 3;
  MetricsLog(folder / "metrics.jsonl", -1).write(m);
  EXPECT_TRUE(event_files(folder.path()).empty());
  MetricsLog(folder / "metrics.jsonl", -1, true).write(m);
  EXPECT_EQ(event_files(folder.path()).size(), 1u);
}

// The Trainer tries once more to log a step that it is about to save.
TEST(MetricsLog, AnErrorOfTheEventFileDoublesNoLine) {
  const TemporaryFolder folder;
  MetricsLog log(folder / "metrics.jsonl", -1, true);
  {
    const FaultyCalls faults([](const std::string& call, const std::string& path) {
      return call == "write" && path.find("tfevents") != std::string::npos ? ENOSPC : 0;
    });
    EXPECT_THROW(log.write_validation(1, 2.0), Error);
    log.write_validation(1, 2.0);
  }
  const std::string lines = read_file(folder / "metrics.jsonl");
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << lines;
}

TEST(TensorBoardLog, AFullDiskIsNamed) {
  const TemporaryFolder folder;
  TensorBoardLog log(folder.path(), -1, 1000.0);
  const FileSizeLimit limit(60);
  expect_error(
      [&] {
        log.write(1, 1000.0, {{"loss", 2.0f}});
      },
      {"events.out.tfevents.1000", "cannot write; is the disk full?"});
}

}  // namespace
}  // namespace quern
