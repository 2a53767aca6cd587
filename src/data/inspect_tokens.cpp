#include "data/inspect_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include "base/error.h"
#include "data/dataset.h"
#include "io/input_files.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// The token files of a folder by part: train, validation, all other names.
std::vector<InspectedPart> parts_of(const std::string& path) {
  std::vector<fs::path> files = find_input_files(std::array{path});
  if (!fs::is_directory(path)) {
    InspectedPart part;
    part.name = path;
    for (const fs::path& file : files) part.files.push_back({file, {}, 0, {}});
    return {part};
  }
  std::vector<InspectedPart> parts(3);
  parts[0].name = "train";
  parts[1].name = "validation";
  parts[2].name = path;
  for (const fs::path& file : files) {
    if (file.extension() != ".bin") continue;
    const std::string name = file.filename().string();
    const size_t part = name.starts_with("train") ? 0 : name.starts_with("validation") ? 1 : 2;
    parts[part].files.push_back({file, {}, 0, {}});
  }
  std::erase_if(parts, [](const InspectedPart& part) { return part.files.empty(); });
  QUERN_CHECK(!parts.empty(), path, ": folder holds no token file (*.bin)");
  return parts;
}

void read_head(InspectedFile& file, bool verify) {
  const TokenFile tokens = TokenFile::open(file.path);
  file.encoding = tokens.encoding();
  file.tokens = tokens.size();
  file.sidecar = read_token_sidecar(file.path);
  if (file.sidecar) check_token_sidecar(*file.sidecar, tokens);
  QUERN_CHECK(!verify || file.sidecar, file.path.string(), ": has no sidecar ",
              sidecar_path(file.path).string(), " to verify it by");
  if (verify) verify_token_file(*file.sidecar, file.path);
}

// The first sidecar; null: none. All shards must come from one tokenizer.
const TokenSidecar* first_sidecar(const std::vector<InspectedPart>& parts) {
  const TokenSidecar* first = nullptr;
  for (const InspectedPart& part : parts) {
    for (const InspectedFile& file : part.files) {
      if (!file.sidecar) continue;
      if (!first) first = &*file.sidecar;
      QUERN_CHECK(file.sidecar->tokenizer_hash == first->tokenizer_hash, file.path.string(),
                  ": was made with tokenizer ", file.sidecar->tokenizer_hash, ", other files with ",
                  first->tokenizer_hash);
    }
  }
  return first;
}

std::shared_ptr<const Tokenizer> find_tokenizer(const InspectOptions& options,
                                                const std::vector<InspectedPart>& parts,
                                                const TokenSidecar* sidecar) {
  std::shared_ptr<const Tokenizer> tokenizer;
  const fs::path beside = parts[0].files[0].path.parent_path() / "tokenizer";
  if (!options.tokenizer.empty()) {
    tokenizer = open_tokenizer(options.tokenizer);
  } else if (sidecar && sidecar->tokenizer_kind == "bytes") {
    tokenizer = open_tokenizer("bytes");
  } else if (sidecar && fs::is_directory(beside)) {
    tokenizer = open_tokenizer(beside);
  }
  QUERN_CHECK(!tokenizer || !sidecar || tokenizer->hash() == sidecar->tokenizer_hash,
              options.tokenizer.empty() ? beside.string() : options.tokenizer, ": is tokenizer ",
              tokenizer->hash(), ", but ", parts[0].files[0].path.string(), " was made with ",
              sidecar->tokenizer_hash);
  return tokenizer;
}

// `counts` maps a length to the number of its documents.
LengthStats length_stats(const std::map<int64_t, int64_t>& counts) {
  LengthStats stats;
  double sum = 0.0;
  for (const auto& [length, count] : counts) {
    stats.documents += count;
    sum += static_cast<double>(length) * static_cast<double>(count);
    const auto place = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)));
    if (stats.histogram.size() <= place) stats.histogram.resize(place + 1);
    stats.histogram[place] += count;
  }
  if (stats.documents == 0) return stats;
  stats.shortest = counts.begin()->first;
  stats.longest = counts.rbegin()->first;
  stats.mean = sum / static_cast<double>(stats.documents);
  int64_t before = 0;
  for (const auto& [length, count] : counts) {
    before += count;
    if (before >= (stats.documents + 1) / 2) {
      stats.median = length;
      break;
    }
  }
  return stats;
}

// Reads every token of the part's files as one stream.
void count(InspectedPart& part, std::optional<int32_t> end_token) {
  std::map<int64_t, int64_t> counts;
  for (const InspectedFile& file : part.files) {
    const TokenSource tokens(TokenFile::open(file.path));
    tokens.for_each_block([&](int64_t, std::span<const int32_t> block) {
      for (const int32_t token : block) {
        // Compares as unsigned: a uint32 of 2^31 or more is a large token, not a negative one.
        part.largest = std::max<int64_t>(part.largest, static_cast<uint32_t>(token));
        ++part.unfinished;
        if (token == end_token) ++counts[std::exchange(part.unfinished, 0) - 1];
      }
    });
    part.tokens += tokens.size();
    if (file.sidecar) {
      tokens.check_vocabulary(file.sidecar->vocabulary);
      part.documents = part.documents.value_or(0) + file.sidecar->documents;
    }
  }
  if (!end_token) part.unfinished = 0;
  part.lengths = length_stats(counts);
}

std::vector<int32_t> read_window(const InspectedPart& part, int64_t begin, int64_t length) {
  QUERN_CHECK(begin >= 0 && begin < part.tokens, part.name, ": the window begins at token ", begin,
              ", expected 0 to ", part.tokens - 1);
  const int64_t end = begin + std::min(length, part.tokens - begin);
  std::vector<TokenFile> files;
  for (const InspectedFile& file : part.files) files.push_back(TokenFile::open(file.path));
  std::vector<int32_t> window(static_cast<size_t>(end - begin));
  TokenSource(std::move(files), part.name).copy(begin, end - begin, window.data());
  return window;
}

}  // namespace

Inspection inspect_tokens(const InspectOptions& options) {
  Inspection inspection;
  inspection.parts = parts_of(options.path);
  for (InspectedPart& part : inspection.parts) {
    for (InspectedFile& file : part.files) read_head(file, options.verify);
  }
  const TokenSidecar* sidecar = first_sidecar(inspection.parts);
  inspection.tokenizer = find_tokenizer(options, inspection.parts, sidecar);
  if (sidecar) {
    inspection.end_token = sidecar->end_token;
  } else if (inspection.tokenizer) {
    inspection.end_token = inspection.tokenizer->end_token();
  }
  for (InspectedPart& part : inspection.parts) count(part, inspection.end_token);
  inspection.window_begin = options.window;
  inspection.window = read_window(inspection.parts[0], options.window, options.length);
  return inspection;
}

}  // namespace quern
