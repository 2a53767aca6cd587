#include "data/inspect_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include "base/error.h"
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

const TokenSidecar* first_sidecar(const std::vector<InspectedPart>& parts) {
  for (const InspectedPart& part : parts) {
    for (const InspectedFile& file : part.files) {
      if (file.sidecar) return &*file.sidecar;
    }
  }
  return nullptr;
}

// All shards must come from one tokenizer.
void check_same_tokenizer(const std::vector<InspectedPart>& parts, const TokenSidecar& first) {
  for (const InspectedPart& part : parts) {
    for (const InspectedFile& file : part.files) {
      if (!file.sidecar) continue;
      QUERN_CHECK(file.sidecar->tokenizer_hash == first.tokenizer_hash, file.path.string(),
                  ": was made with tokenizer ", file.sidecar->tokenizer_hash, ", other files with ",
                  first.tokenizer_hash);
    }
  }
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
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  std::map<int64_t, int64_t> counts;
  for (const InspectedFile& file : part.files) {
    const TokenFile tokens = TokenFile::open(file.path);
    for (int64_t begin = 0; begin < tokens.size(); begin += kBlock) {
      const int64_t count = std::min(kBlock, tokens.size() - begin);
      tokens.copy(begin, count, block.data());
      for (const int32_t token : std::span(block).first(static_cast<size_t>(count))) {
        // Compares as unsigned: a uint32 of 2^31 or more is a large token, not a negative one.
        part.largest = std::max<int64_t>(part.largest, static_cast<uint32_t>(token));
        ++part.unfinished;
        if (token == end_token) ++counts[std::exchange(part.unfinished, 0) - 1];
      }
    }
    part.tokens += tokens.size();
    if (file.sidecar) {
      tokens.check_vocabulary(file.sidecar->vocabulary);
      part.documents = part.documents.value_or(0) + file.sidecar->documents;
    }
  }
  if (!end_token) part.unfinished = 0;
  part.lengths = length_stats(counts);
}

// Opens only the files that the window covers.
std::vector<int32_t> read_window(const InspectedPart& part, int64_t begin, int64_t length) {
  QUERN_CHECK(begin >= 0 && begin < part.tokens, part.name, ": the window begins at token ", begin,
              ", expected 0 to ", part.tokens - 1);
  const int64_t end = begin + std::min(length, part.tokens - begin);
  std::vector<int32_t> window(static_cast<size_t>(end - begin));
  int64_t first = 0;  // of the file's tokens in the stream
  for (const InspectedFile& file : part.files) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + file.tokens);
    if (from < to) {
      TokenFile::open(file.path).copy(from - first, to - from, window.data() + (from - begin));
    }
    first += file.tokens;
  }
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
  if (sidecar) check_same_tokenizer(inspection.parts, *sidecar);
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
