#include "data/text_corpus.h"

#include <string>

#include "base/error.h"
#include "data/document_reader.h"
#include "io/input_files.h"
#include "io/mapped_file.h"
#include "text/byte_tokenizer.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Refuses names that are unlikely in a folder of text. A file given by its path may have any name.
void check_name(const fs::path& path) {
  const std::string extension = path.extension().string();
  QUERN_CHECK(extension != ".bin", path.string(),
              ": is named as a token file, expected text; a pattern ('",
              (path.parent_path() / "*.bin").string(), "') reads token files");
  QUERN_CHECK(extension != ".jsonl" && extension != ".ndjson", path.string(),
              ": is JSON lines, expected text; `quern data prepare` reads them");
}

void append_file(const fs::path& path, bool any_bytes, std::vector<uint16_t>& tokens) {
  const MappedFile file = MappedFile::open(path);
  if (file.bytes().empty()) return;
  const bool compressed =
      file.text().starts_with("\x1F\x8B") || file.text().starts_with("\x28\xB5\x2F\xFD");
  QUERN_CHECK(any_bytes || !compressed, path.string(),
              ": expected text, but it is compressed (`quern data prepare` reads gzip and zstd)");
  if (!any_bytes) check_is_text(path);
  if (!tokens.empty()) tokens.push_back(kEndOfText);
  tokens.reserve(tokens.size() + file.bytes().size());
  for (const std::byte byte : file.bytes()) tokens.push_back(std::to_integer<uint16_t>(byte));
}

}  // namespace

std::vector<uint16_t> read_text(const fs::path& path, bool any_bytes) {
  std::vector<uint16_t> tokens;
  std::error_code ignored;  // opening reports it
  if (!fs::is_directory(path, ignored)) {
    append_file(path, any_bytes, tokens);
    QUERN_CHECK(!tokens.empty(), path.string(), ": text file is empty");
    return tokens;
  }
  for (const fs::path& file : files_below(path)) {
    if (!any_bytes) check_name(file);
    append_file(file, any_bytes, tokens);
  }
  QUERN_CHECK(!tokens.empty(), path.string(), ": folder holds no text (no non-empty file)");
  return tokens;
}

}  // namespace quern
