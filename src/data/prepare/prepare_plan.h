// What a run of prepare.h does, settled before the first byte is read: the sources, how each is
// read, and all that the result follows from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/prepare/prepare.h"
#include "data/token_sidecar.h"
#include "text/tokenizer.h"

namespace quern {

struct PrepareSource {
  std::filesystem::path path;
  int64_t bytes = 0;     // as it lies on the disk
  int64_t modified = 0;  // nanoseconds, of the file system's clock
  bool json_lines = false;
};

struct PreparePlan {
  std::vector<PrepareSource> sources;
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenSidecar sidecar;  // without what differs from shard to shard
  // Where the validation part begins when it is the end of the text: a byte of a source's text.
  // Empty: documents go to the validation part as a whole.
  struct Cut {
    size_t source = 0;
    int64_t byte = 0;
  };
  std::optional<Cut> cut;
  int64_t total_bytes = 0;

  // Whether document `index`, counted over all sources, is validated on. It is document number
  // `index_in_source` of `source`.
  bool validates(int64_t index, size_t source, int64_t index_in_source,
                 const PrepareOptions& options) const;
};

// Whether a validation part of this share of the data is what `fraction` asks for: it is off by at
// most half of the smaller part.
bool meets_fraction(double share, double fraction);

// Throws naming the option or the file.
PreparePlan plan_prepare(const PrepareOptions& options);

// All that the result follows from, to be compared when a run goes on.
nlohmann::ordered_json settings_json(const PreparePlan& plan, const PrepareOptions& options);
nlohmann::ordered_json sources_json(const PreparePlan& plan);

}  // namespace quern
