#include "data/text_corpus.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/mapped_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

void append_file(const fs::path& path, std::vector<uint16_t>& tokens) {
  const MappedFile file = MappedFile::open(path);
  if (file.bytes().empty()) return;
  if (!tokens.empty()) tokens.push_back(kEndOfText);
  tokens.reserve(tokens.size() + file.bytes().size());
  for (const std::byte byte : file.bytes()) tokens.push_back(std::to_integer<uint16_t>(byte));
}

std::vector<fs::path> text_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::end(it); ++it) {
    if (is_hidden(it->path())) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file()) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());  // by path component, the same on every file system
  return files;
}

}  // namespace

std::vector<uint16_t> read_text(const fs::path& path) {
  std::vector<uint16_t> tokens;
  std::error_code ignored;  // opening reports it
  if (!fs::is_directory(path, ignored)) {
    append_file(path, tokens);
    QUERN_CHECK(!tokens.empty(), path.string(), ": text file is empty");
    return tokens;
  }
  try {
    for (const fs::path& file : text_files_in(path)) append_file(file, tokens);
  } catch (const fs::filesystem_error& error) {
    fail(cat(path.string(), ": folder cannot be read: ", error.what()));
  }
  QUERN_CHECK(!tokens.empty(), path.string(), ": folder holds no text (no file that is not empty)");
  return tokens;
}

}  // namespace quern
