#!/usr/bin/env bash
# check_includes and check_sizes find planted violations, and accept allowed code.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

# plant FILE TEXT: a tree with only this file.
plant() {
  rm -rf "$scratch/tree"
  mkdir -p "$scratch/tree/src" "$scratch/tree/$(dirname "$1")"
  printf '%s\n' "$2" >"$scratch/tree/$1"
}
add() {
  mkdir -p "$scratch/tree/$(dirname "$1")"
  printf '%s\n' "$2" >"$scratch/tree/$1"
}
includes() { "$root/scripts/check_includes" "$scratch/tree"; }
sizes() { "$root/scripts/check_sizes" "$scratch/tree"; }

plant src/base/shape.h '#include "tensor/tensor.h"'
expect 'an include that points up' 1 'src/base/shape.h:1: src/base may not include tensor/tensor.h' includes
plant src/data/sampler.cpp '#include "nn/linear.h"'
expect 'an include that points sideways' 1 'src/data may not include nn/linear.h' includes
plant src/run/checkpoint.cpp '#include "optim/adamw.h"'
expect 'an include that points down' 0 '0 violations' includes
plant src/gadgets/a.h '#pragma once'
expect 'a folder without a layer' 1 'not in the table of layers' includes
plant src/nn/linear.cpp '#include "../tensor/tensor.h"'
expect 'a relative include' 1 'paths start at src/' includes
plant src/nn/linear.cpp '#include <cuda_runtime.h>'
expect 'a CUDA header above tensor' 1 'CUDA header cuda_runtime.h above src/tensor' includes
plant src/tensor/cuda_runtime.cpp '#include <cuda_runtime.h>'
expect 'a CUDA header in tensor' 0 '0 violations' includes
plant src/kernels/cuda/gemm/gemm.cu '#include "kernels/gemm.h"'
add src/kernels/gemm.h '#include "base/text.h"'
add src/base/text.h '#include <fmt/format.h>'
expect 'fmt in a header that a .cu reaches' 1 'src/base/text.h:1: <fmt/format.h>' includes
plant src/kernels/cpu/eigen.h '#include <Eigen/Core>'
expect 'Eigen in a header that no .cu reaches' 0 '0 violations' includes
plant src/kernels/cuda/copy.cu 'kernel<<<1, 32>>>(x);'
expect 'a raw launch' 1 'copy.cu:1: a raw <<<' includes
plant src/kernels/cuda/primitives/launch.cuh 'kernel<<<1, 32>>>(x);'
expect 'the launch helper' 0 '0 violations' includes
for call in 'printf("x")' 'std::printf("x")' 'std::fprintf(stderr, "x")' 'exit(1)' '::abort()' \
  'std::getenv("HOME")'; do
  plant src/train/a.cpp "void f() { $call; }"
  expect "the call $call" 1 'is not called in src/' includes
done
plant src/train/a.cpp '// exit(1) and printf("x")
const char* text = "abort()"; void g() { queue.exit(); my_exit(2); struct S { void abort(); }; snprintf(a, 3, "x"); fmt::print("x"); }'
expect 'comments, strings and other names' 0 '0 violations' includes
plant src/train/a.cpp '#define TWICE(x) x x'
expect 'a macro' 1 'macro TWICE' includes
plant src/train/a.cpp $'#define TWICE(x) x x\n#undef TWICE'
expect 'a macro of one file' 0 '0 violations' includes

plant src/nn/long.h "$(seq 301)"
expect 'a header too long' 1 'src/nn/long.h: 301 lines, expected at most 300' sizes
plant src/nn/long.h "$(seq 300)"
expect 'a header just short enough' 0 '' sizes
plant tests/nn/long.cpp "$(seq 601)"
expect 'a source too long' 1 'tests/nn/long.cpp: 601 lines, expected at most 600' sizes
plant src/nn/long.cu "$(seq 600)"
expect 'a source just short enough' 0 '' sizes
heavy() { (cd "$scratch/tree" && git init -q . && git add -A && "$root/scripts/check_sizes" .); }
plant tool.bin "$(head -c 1000001 /dev/zero | tr '\0' x)"
expect 'a heavy file that git tracks' 1 'tool.bin: 1000002 bytes, expected at most 1 MB' heavy
plant tests/fixtures/case.bin "$(head -c 1000001 /dev/zero | tr '\0' x)"
expect 'a heavy fixture' 0 '' heavy
exit $((failures > 0))
