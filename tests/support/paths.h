// Paths of this checkout and of the program under test.
#pragma once

#include <filesystem>
#include <string>

namespace quern::testing_support {

std::filesystem::path source_folder();
std::string program_path();     // the program `quern` of this build
std::string fault_shim_path();  // fault_shim.cpp as a library, for LD_PRELOAD

}  // namespace quern::testing_support
