// How far a run of prepare.h has come, on the disk: one JSON object a line. The first line says
// what is done; then come the sources that were read to their end, and checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/document_reader.h"
#include "data/prepare/shard_writer.h"
#include "io/checksum.h"

namespace quern {

struct FinishedSource {
  FileDigest digest;
  int64_t documents = 0;
};

// Where a run stands after a block. All before it is on the disk.
struct PrepareState {
  std::vector<FinishedSource> finished;  // the sources before `source`
  size_t source = 0;
  ReadPosition position;         // in it
  int64_t source_documents = 0;  // begun in it
  int64_t documents = 0;         // begun in all
  bool in_validation = false;    // where the last one went: it may go on
  ShardState train, validation;
  int64_t text_bytes = 0, empty = 0, end_tokens_in_text = 0;
  std::map<std::string, int64_t> skipped;
};

class PrepareJournal {
 public:
  // Begins FILE with what is to be done. Throws naming the file.
  static PrepareJournal create(const std::filesystem::path& file,
                               const nlohmann::ordered_json& settings,
                               const nlohmann::ordered_json& sources);
  // Reads FILE, and the state at its last checkpoint; what comes after that is cut off. Throws when
  // settings or sources are not the same, naming the first that differs, and when another process
  // has the journal open.
  static PrepareJournal resume(const std::filesystem::path& file,
                               const nlohmann::ordered_json& settings,
                               const nlohmann::ordered_json& sources, PrepareState& state);
  PrepareJournal(PrepareJournal&& other) noexcept;
  PrepareJournal& operator=(PrepareJournal&&) = delete;
  ~PrepareJournal();

  // Sources that are finished since the last checkpoint, and the state. On the disk when it
  // returns.
  void checkpoint(const PrepareState& state);
  int64_t checkpoints() const { return checkpoints_; }  // in the file

 private:
  explicit PrepareJournal(std::filesystem::path file);
  void append(const std::string& lines);

  std::filesystem::path file_;
  int fd_ = -1;
  size_t finished_ = 0;  // sources in the file
  int64_t checkpoints_ = 0;
};

// Throws naming `file` and the first setting or source that is not the same in it.
void check_same_run(const std::filesystem::path& file, const nlohmann::ordered_json& found_settings,
                    const nlohmann::ordered_json& found_sources,
                    const nlohmann::ordered_json& settings, const nlohmann::ordered_json& sources);

}  // namespace quern
