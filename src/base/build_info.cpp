#include "base/build_info.h"

#include "build_info_values.h"

namespace quern {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo = {build::kVersion,  build::kCommit,        build::kCompiler,
                                      build::kCuda,     build::kArchitectures, build::kFlags,
                                      build::kBuildType};
  return kInfo;
}

}  // namespace quern
