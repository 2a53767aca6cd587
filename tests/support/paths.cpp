#include "support/paths.h"

namespace quern::testing_support {

std::filesystem::path source_folder() {
  return QUERN_SOURCE_DIR;
}

std::string program_path() {
  return QUERN_PROGRAM;
}

std::string fault_shim_path() {
  return QUERN_FAULT_SHIM;
}

}  // namespace quern::testing_support
