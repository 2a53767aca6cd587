// Folders. std::filesystem reports a call that a signal interrupted as an error; these repeat it.
#pragma once

#include <filesystem>
#include <vector>

namespace quern {

// Create a folder with its parents, and remove a file or folder, each if needed. Throw naming it.
void create_folder(const std::filesystem::path& path);
void remove_tree(const std::filesystem::path& path);

// Removes the trailing slash that shells add on completion: "folder" for "folder/".
std::filesystem::path without_slash(const std::filesystem::path& path);

// A folder's entries, sorted by name. Throws naming the folder.
std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder);

// The same with the reason in `error`, which success clears; no entries after an error.
// remove_tree() also reports out of memory in `error`, so destructors may call it.
void create_folder(const std::filesystem::path& path, std::error_code& error);
void remove_tree(const std::filesystem::path& path, std::error_code& error) noexcept;
std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder,
                                                         std::error_code& error);

}  // namespace quern
