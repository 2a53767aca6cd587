// Where this checkout and the program under test lie.
#pragma once

#include <filesystem>
#include <string>

namespace quern::testing_support {

std::filesystem::path source_folder();
std::string program_path();  // the program `quern` of this build

}  // namespace quern::testing_support
