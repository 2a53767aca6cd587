#include "run/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "base/error.h"
#include "dist/host_name.h"
#include "io/folder.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFF);
  return bytes;
}

std::string masked_crc(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8u);
}

// Protobuf's wire format: a field is its number and wire type as a varint, then the value.
// https://protobuf.dev/programming-guides/encoding
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, int wire_type) {
  return varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
}

std::string integer_field(int field, int64_t value) {
  return key(field, 0) + varint(static_cast<uint64_t>(value));
}

std::string double_field(int field, double value) {
  return key(field, 1) + little_endian(std::bit_cast<uint64_t>(value));
}

std::string bytes_field(int field, std::string_view bytes) {
  return key(field, 2) + varint(bytes.size()) + std::string(bytes);
}

std::string float_field(int field, float value) {
  return key(field, 5) + little_endian(std::bit_cast<uint32_t>(value));
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(int64_t step, double time, int field, std::string_view what) {
  return double_field(1, time) + integer_field(2, step) + bytes_field(field, what);
}

// The largest TIME in the names of the existing event files.
int64_t newest_file(const fs::path& folder) {
  int64_t newest = 0;
  std::error_code error;  // for an unreadable folder, opening the file gives the reason
  for (const fs::path& file : entries_of(folder, error)) {
    const std::string name = file.filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t time = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), time);
    newest = std::max(newest, time);
  }
  return newest;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

std::string framed_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string version_event(double time) {
  return double_field(1, time) + bytes_field(3, "brain.Event:2");
}

// Summary: repeated value = 1; Value: tag = 1, simple_value = 2.
std::string scalars_event(int64_t step, double time, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    summary += bytes_field(1, bytes_field(1, scalar.tag) + float_field(2, scalar.value));
  }
  return event(step, time, 5, summary);
}

// SessionLog: status = 1, START = 1.
std::string restart_event(int64_t step, double time) {
  return event(step, time, 7, integer_field(1, 1));
}

TensorBoardLog::TensorBoardLog(const fs::path& folder, int64_t last_step, double time) {
  // Readers sort the files by name, and two processes may start within one second.
  const int64_t newest = newest_file(folder);
  const int64_t stamp = std::max(static_cast<int64_t>(time), newest + 1);
  path_ = folder / cat(kPrefix, stamp, ".", host_name(), ".", getpid());
  file_.open(path_, std::ios::binary);
  QUERN_CHECK(file_, path_.string(), ": cannot be opened for writing");
  record(version_event(time));
  if (last_step >= 0 || newest > 0) record(restart_event(last_step + 1, time));
}

void TensorBoardLog::write(int64_t step, double time, const std::vector<Scalar>& scalars) {
  record(scalars_event(step, time, scalars));
}

void TensorBoardLog::record(const std::string& event) {
  file_ << framed_record(event) << std::flush;
  QUERN_CHECK(file_, path_.string(), ": cannot write; is the disk full?");
}

}  // namespace quern
