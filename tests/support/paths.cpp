#include "support/paths.h"

namespace quern::testing_support {

std::filesystem::path source_folder() {
  return QUERN_SOURCE_DIR;
}

std::string program_path() {
  return QUERN_PROGRAM;
}

}  // namespace quern::testing_support
