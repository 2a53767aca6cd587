// TensorBoard's event files: https://www.tensorflow.org/tensorboard. A file holds framed records,
// each an Event message in protobuf's wire format. Both are written by hand: a dozen fields need no
// library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// CRC-32C, the Castagnoli polynomial (RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

// One record of a TFRecord file: length (uint64), masked CRC of the length, data, masked CRC of the
// data, little-endian. Mask: rotated right by 15 bits, plus 0xa282ead8 (tensorflow's
// lib/io/record_writer.h).
std::string framed_record(std::string_view data);

struct Scalar {
  std::string tag;
  float value;
};

// Event messages (tensorflow's core/util/event.proto and core/framework/summary.proto).
std::string version_event(double time);
std::string scalars_event(int64_t step, double time, const std::vector<Scalar>& scalars);
// The process continues after the previous step: readers drop this and later steps.
std::string restart_event(int64_t step, double time);

// One file of a process in `folder`, events.out.tfevents.TIME.HOST.PID, which sorts after the files
// of earlier processes.
class TensorBoardLog {
 public:
  // Continues after `last_step`; -1: a new run. Throws when the file cannot be created.
  TensorBoardLog(const std::filesystem::path& folder, int64_t last_step, double time);
  void write(int64_t step, double time, const std::vector<Scalar>& scalars);

 private:
  void record(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace quern
