// The plan of a run of prepare.h, complete before the first byte is read: the sources, their
// formats, and all settings that determine the result.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "data/prepare/prepare.h"
#include "data/token_sidecar.h"
#include "text/tokenizer.h"

namespace quern {

struct PrepareSource {
  std::filesystem::path path;
  int64_t bytes = 0;     // size on disk
  int64_t modified = 0;  // nanoseconds of the file system's clock
  bool json_lines = false;
};

struct PreparePlan {
  std::vector<PrepareSource> sources;
  std::string field;  // PrepareOptions::field or its default
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenSidecar sidecar;  // the fields common to all shards
  // Start of the validation part if it is the end of the text: a byte of a source's text. Empty:
  // whole documents go to the validation part.
  struct Cut {
    size_t source = 0;
    int64_t byte = 0;
  };
  std::optional<Cut> cut;
  int64_t total_bytes = 0;

  // True when a document belongs to the validation part. `index` counts over all sources,
  // `index_in_source` within `source`.
  bool validates(int64_t index, size_t source, int64_t index_in_source,
                 const PrepareOptions& options) const;
};

// True when the validation part's `share` of the data differs from `fraction` by at most half of
// the smaller part.
bool meets_fraction(double share, double fraction);

// Throws naming the option or the file.
PreparePlan plan_prepare(const PrepareOptions& options);

// Everything that determines the result, for comparison when a run is resumed.
nlohmann::ordered_json settings_json(const PreparePlan& plan, const PrepareOptions& options);
nlohmann::ordered_json sources_json(const PreparePlan& plan);

}  // namespace quern
