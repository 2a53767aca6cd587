// The files that a command line means: files, folders and patterns.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quern {

// Of each input in turn: a file itself; a folder's regular files and those of its subfolders,
// sorted by path; the files and folders that a pattern (* ? [...]) matches, sorted. Below a folder
// and in a pattern's matches, what begins with a dot is left out. Throws naming the input when
// nothing is there, and naming the file when one is found twice.
std::vector<std::filesystem::path> find_input_files(std::span<const std::string> inputs);

// The regular files in the folder and its subfolders, as above. Throws naming the folder when it
// cannot be read.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

}  // namespace quern
