// Resolves command-line inputs: files, folders and patterns.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quern {

// Expands each input in turn: a file to itself; a folder to the regular files in it and its
// subfolders, sorted by path; a pattern (* ? [...]) to the files and folders it matches, sorted.
// Below a folder, names that begin with a dot are skipped; wildcards do not match such a dot.
// A link below a folder must lead to a file. Throws naming an input that yields no file, and naming
// a file that is found twice.
std::vector<std::filesystem::path> find_input_files(std::span<const std::string> inputs);

// The regular files in the folder and its subfolders, as above; may be empty. Throws naming the
// folder when it cannot be read.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

}  // namespace quern
