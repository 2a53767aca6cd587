#include "io/folder.h"

#include <algorithm>
#include <new>

#include "base/error.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

void check(const fs::path& path, const char* what, const std::error_code& error) {
  QUERN_CHECK(!error, path.string(), ": ", what, ": ", error.message());
}

std::vector<fs::directory_entry> read_once(const fs::path& folder, std::error_code& error) {
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator i(folder, error);
  for (; !error && i != fs::directory_iterator(); i.increment(error)) entries.push_back(*i);
  return entries;
}

}  // namespace

void create_folder(const fs::path& path, std::error_code& error) {
  do fs::create_directories(path, error);
  while (error == std::errc::interrupted);
}

void remove_tree(const fs::path& path, std::error_code& error) noexcept try {
  do fs::remove_all(path, error);
  while (error == std::errc::interrupted);
} catch (const std::bad_alloc&) {
  error = std::make_error_code(std::errc::not_enough_memory);
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::directory_entry> entries;
  do entries = read_once(folder, error);
  while (error == std::errc::interrupted);
  if (error) return {};
  std::ranges::sort(entries);
  return entries;
}

void create_folder(const fs::path& path) {
  std::error_code error;
  create_folder(path, error);
  check(path, "cannot be created", error);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  remove_tree(path, error);
  check(path, "cannot be removed", error);
}

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries = entries_of(folder, error);
  check(folder, "folder cannot be read", error);
  return entries;
}

}  // namespace quern
