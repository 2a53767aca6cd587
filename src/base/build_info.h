// Version, commit, compiler, flags and GPU architectures of this build.
#pragma once

namespace quern {

struct BuildInfo {
  const char* version;
  const char* commit;  // "unknown" outside a git checkout
  const char* compiler;
  const char* cuda;                // the toolkit's version; "" when built without CUDA
  const char* cuda_architectures;  // "80-real 90a-real 80-virtual"; "" when built without CUDA
  const char* flags;
  const char* build_type;
};

const BuildInfo& build_info();

}  // namespace quern
