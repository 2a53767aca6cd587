#include "io/input_files.h"

#include <glob.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "io/folder.h"
#include "io/python_line.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Sorted matches of a pattern; may be empty.
std::vector<fs::path> matches_of(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  QUERN_CHECK(code == 0 || code == GLOB_NOMATCH, pattern, ": cannot be searched for");
  std::sort(paths.begin(), paths.end());
  return paths;
}

// A link below a folder must lead to a file: a missing one is lost input, a folder may be a loop.
void check_link(const fs::path& link) {
  std::error_code error;
  const fs::file_status target = fs::status(link, error);
  std::error_code ignored;
  QUERN_CHECK(fs::exists(target), link.string(), ": is a link to ",
              fs::read_symlink(link, ignored).string(),
              ", which cannot be read: ", error.message());
  QUERN_CHECK(!fs::is_directory(target), link.string(),
              ": is a link to a folder, expected links to files; name the folder as an input");
  QUERN_CHECK(fs::is_regular_file(target), link.string(), ": is not a regular file");
}

void append(const fs::path& path, std::vector<fs::path>& files) {
  if (!fs::is_directory(path)) {
    QUERN_CHECK(fs::is_regular_file(path), path.string(), ": is not a regular file");
    files.push_back(path);
    return;
  }
  const std::vector<fs::path> below = files_below(path);
  QUERN_CHECK(!below.empty(), path.string(), ": folder holds no file");
  files.insert(files.end(), below.begin(), below.end());
}

}  // namespace

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (entry.path().filename().string().starts_with('.')) continue;
    if (entry.is_symlink()) {
      check_link(entry);
      files.push_back(entry);
    } else if (entry.is_directory()) {
      std::ranges::move(files_below(entry), std::back_inserter(files));
    } else if (entry.is_regular_file()) {
      files.push_back(entry);
    }
  }
  return files;
}

std::vector<fs::path> find_input_files(std::span<const std::string> inputs) {
  std::vector<fs::path> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (fs::exists(input, error)) {  // checked first: a file name may look like a pattern
      append(input, files);
      continue;
    }
    QUERN_CHECK(input.find_first_of("*?[") != std::string::npos, input,
                ": cannot be opened: ", error ? error.message() : "No such file or directory",
                hub_hint(input, HubKind::dataset));
    const std::vector<fs::path> matches = matches_of(input);
    QUERN_CHECK(!matches.empty(), input, ": no file matches this pattern");
    for (const fs::path& match : matches) append(match, files);
  }
  std::set<fs::path> seen;
  for (const fs::path& file : files) {
    QUERN_CHECK(seen.insert(fs::weakly_canonical(file)).second, file.string(),
                ": is among the inputs twice");
  }
  return files;
}

}  // namespace quern
