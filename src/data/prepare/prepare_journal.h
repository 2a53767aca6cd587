// The journal of a run of prepare.h on disk: lines of a checksum and a JSON object. The first line
// has the settings and sources; finished sources and checkpoints follow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/document_reader.h"
#include "data/prepare/shard_writer.h"
#include "io/file_lock.h"

namespace quern {

// The state of a run after a block. All earlier output is on disk.
struct PrepareState {
  std::vector<Finished> finished;  // the sources before `source`
  size_t source = 0;
  ReadPosition position;         // in `source`
  int64_t source_documents = 0;  // begun in `source`
  int64_t documents = 0;         // begun in all sources
  bool in_validation = false;    // the part of the last document, which may continue
  ShardState train, validation;
  int64_t text_bytes = 0, empty = 0, end_tokens_in_text = 0;
  std::map<std::string, int64_t> skipped;
};

class PrepareJournal {
 public:
  // Whether FILE has a complete first line; until then the run has not begun.
  static bool begun(const std::filesystem::path& file);
  // Begins FILE anew with the settings and sources. Throws naming the file.
  static PrepareJournal create(const std::filesystem::path& file,
                               const nlohmann::ordered_json& settings,
                               const nlohmann::ordered_json& sources);
  // Reads FILE up to its last checkpoint, sets `state` to it and truncates the rest. Throws naming
  // the damaged line, or the first setting or source that differs, and when another process has the
  // journal open.
  static PrepareJournal resume(const std::filesystem::path& file,
                               const nlohmann::ordered_json& settings,
                               const nlohmann::ordered_json& sources, PrepareState& state);

  // Appends the sources finished since the last checkpoint, and the state. Both are then on disk.
  void checkpoint(const PrepareState& state);
  int64_t checkpoints() const { return checkpoints_; }  // in the file

 private:
  explicit PrepareJournal(std::filesystem::path file);
  void truncate(int64_t bytes);
  void append(const std::string& lines);

  std::filesystem::path file_;
  FileLock lock_;  // on file_
  Descriptor descriptor_;
  size_t finished_ = 0;  // sources in the file
  int64_t checkpoints_ = 0;
};

// Throws naming `file` and its first setting or source that differs.
void check_same_run(const std::filesystem::path& file, const nlohmann::ordered_json& found_settings,
                    const nlohmann::ordered_json& found_sources,
                    const nlohmann::ordered_json& settings, const nlohmann::ordered_json& sources);

}  // namespace quern
