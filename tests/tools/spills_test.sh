#!/usr/bin/env bash
# The kernels of attention on Hopper, of products and of decoding keep their values in registers: ptxas spills
# none, but for the exceptions below. Some have no static shared memory. Reads the program with cuobjdump: CUDA's, or that of
# `pip install nvidia-cuda-cuobjdump`. Skipped without it, or without code for sm_90a.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

# Parts of mangled names. Each has a kernel in the program.
families='hopper_attention_forward_kernel hopper_attention_backward_kernel hopper_attention_delta_kernel
hopper_attention_query_gradients_kernel hopper_swiglu_product_kernel split_product_kernel split_planes_kernel
sum_parts_kernel quantize_kernel decode_attention_kernel decode_linear_kernel decode_token_kernel sample_kernel'

# Kernels (by a pattern for the mangled name), the bytes of stack that each may have, and the reason. nvcc 13.0
# needs as many; `nvcc -Xptxas -v` shows that all are spills. A pattern that no kernel needs fails.
exceptions='
hopper_attention_backward_kernelILi1E 24 in the warps that copy, with 24 registers: docs/attention-backward.md
hopper_attention_backward_kernelILi5E 8 outside the loop over tiles, where dV and dK are stored
hopper_attention_query_gradients_kernelILi(80|96|192)E 16 outside loops; 2 blocks of 512 threads leave 64 registers
quantize_kernelINS2_12SwigluOutputE 16 at the edges of a matrix, and where a division has to be rounded anew; 3 blocks leave 40 registers
decode_attention_kernelIfLi4E 48 FP32 caches; 3 blocks on a multiprocessor leave 168 registers
decode_attention_kernelIfLi1ELi32E 8 FP32 caches; 4 blocks on a multiprocessor leave 128 registers
decode_linear_kernelINS_8bfloat16ELi2ELb0E 40 rows that are not aligned; 3 blocks leave 80 registers
decode_linear_kernelINS_8bfloat16ELi8E 32 up to 8 rows at once; 2 blocks leave 128 registers
decode_linear_kernelIfLi8ELb0E 8 rows that are not aligned; 2 blocks leave 128 registers
sample_kernelI.*Li1024E 56 a block of 1024 threads leaves 64 registers'

# Kernels whose tiles take a block's whole shared memory on GPUs with 99 KiB: they have none besides. On sm_90a
# cuobjdump counts 1 KiB that the system reserves.
full='tf32_attention_backward_kernel'

# check_usage: reads the output of cuobjdump -res-usage. Prints each kernel for sm_90a that spills.
check_usage() {
  awk -v families="$families" -v exceptions="$exceptions" -v full="$full" '
    function bytes(what) { return match($0, what ":[0-9]+") ? substr($0, RSTART + length(what) + 1) + 0 : -1 }
    BEGIN {
      family_count = split(families, family)
      lines = split(exceptions, line, "\n")
      for (i = 1; i <= lines; ++i) {
        if (split(line[i], field, " ")) limit[field[1]] = field[2]
      }
    }
    /^arch = / { ours = $3 == "sm_90a" }
    $1 == "Function" { name = $2; sub(/:$/, "", name) }
    $1 ~ /^REG:/ && ours {
      if (name ~ full && bytes("SHARED") != 1024) {
        printf "%s:%s, expected SHARED:1024, since its tiles alone fill what some GPUs have\n", name, $0
        bad = 1
      }
      wanted = 0
      for (i = 1; i <= family_count; ++i) {
        if (index(name, family[i])) { wanted = 1; ++found[family[i]] }
      }
      if (!wanted) next
      ++kernels
      stack = bytes("STACK"); allowed = 0
      for (pattern in limit) {
        if (name !~ pattern) continue
        allowed = limit[pattern]
        if (stack > 0) needed[pattern] = 1
      }
      if (stack >= 0 && stack <= allowed && bytes("LOCAL") == 0) next
      printf "%s:%s, expected STACK:%d or less and LOCAL:0\n", name, $0, allowed
      bad = 1
    }
    END {
      for (i = 1; i <= family_count; ++i) {
        if (!found[family[i]]) { print "no kernel " family[i] " for sm_90a"; bad = 1 }
      }
      for (pattern in limit) {
        if (!needed[pattern]) { print "no kernel needs the exception " pattern; bad = 1 }
      }
      printf "%d kernels for sm_90a\n", kernels
      exit bad
    }'
}

# canned NAME USAGE [ARCH]: what cuobjdump prints of a kernel for each family and exception, and of this one.
canned() {
  local kernel
  printf 'Fatbin elf code:\n================\narch = sm_90a\n\nResource usage:\n Common:\n  GLOBAL:0\n'
  for kernel in $families; do printf ' Function _Z9%s:\n  REG:168 STACK:0 SHARED:0 LOCAL:0\n' "$kernel"; done
  for kernel in hopper_attention_backward_kernelILi{1,5}E hopper_attention_query_gradients_kernelILi80E \
    decode_attention_kernelIfLi4E decode_attention_kernelIfLi1ELi32E decode_linear_kernelINS_8bfloat16ELi2ELb0E \
    decode_linear_kernelINS_8bfloat16ELi8E decode_linear_kernelIfLi8ELb0E sample_kernelIfLi1024E \
    quantize_kernelINS2_12SwigluOutputE; do
    printf ' Function _Z9%s:\n  REG:64 STACK:8 SHARED:0 LOCAL:0\n' "$kernel"
  done
  printf 'Fatbin elf code:\n================\narch = %s\n\nResource usage:\n' "${3:-sm_90a}"
  printf ' Function _Z9%s:\n  %s CONSTANT[0]:657\n' "$1" "$2"
}
check_canned() { canned "$@" | check_usage; }
canned_count=$(canned none '' | grep -c '^ Function') # one per family, one per exception, and the one named
forward=hopper_attention_forward_kernelILi0EEv
expect 'a kernel that spills nothing' 0 "$canned_count kernels" check_canned $forward 'REG:240 STACK:0 SHARED:1024 LOCAL:0'
expect 'a planted stack' 1 "$forward:  REG:240 STACK:16" \
  check_canned $forward 'REG:240 STACK:16 SHARED:1024 LOCAL:0'
full_tiles=tf32_attention_backward_kernelILb0ELi9E
expect 'full tiles' 0 'kernels for sm_90a' check_canned $full_tiles 'REG:204 STACK:0 SHARED:1024 LOCAL:0'
expect 'planted shared memory beside full tiles' 1 'expected SHARED:1024' \
  check_canned $full_tiles 'REG:204 STACK:0 SHARED:1028 LOCAL:0'
expect 'planted local memory' 1 'LOCAL:16' check_canned $forward 'REG:240 STACK:0 SHARED:1024 LOCAL:16'
expect 'an exception beyond its bytes' 1 'expected STACK:24' \
  check_canned hopper_attention_backward_kernelILi1E 'REG:168 STACK:48 SHARED:0 LOCAL:0'
expect 'another spelling of the usage' 1 'expected STACK:0' check_canned $forward 'REG:240 FRAME:0 LOCAL:0'
expect 'code for another GPU' 0 "$((canned_count - 1)) kernels" check_canned $forward 'REG:240 STACK:16 SHARED:0 LOCAL:0' sm_80
expect 'another kernel' 0 "$((canned_count - 1)) kernels" check_canned rope_table_kernel 'REG:38 STACK:40 SHARED:0 LOCAL:0'
expect 'no kernels at all' 1 'no kernel decode_token_kernel' check_usage

# The program cuobjdump, or nothing.
find_cuobjdump() {
  local place places=("${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump")
  command -v cuobjdump && return
  if command -v python3 >/dev/null; then
    places+=("$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"/nvidia/cu*/bin/cuobjdump)
  fi
  for place in "${places[@]}"; do
    if [[ -x $place ]]; then printf '%s\n' "$place" && return; fi
  done
}

quern=${QUERN_PROGRAM:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}
cuobjdump=$(find_cuobjdump)
if [[ ! -x $quern ]]; then
  echo "skip the program's kernels spill nothing: $quern is not built"
elif [[ -z $cuobjdump ]]; then
  echo "skip the program's kernels spill nothing: no cuobjdump (pip install nvidia-cuda-cuobjdump)"
elif ! "$cuobjdump" -res-usage "$quern" >"$scratch/usage" 2>&1 || ! grep -q '^arch = sm_90a' "$scratch/usage"; then
  echo "skip the program's kernels spill nothing: $quern has no code for sm_90a"
else
  check_program() { check_usage <"$scratch/usage"; }
  expect "the program's kernels spill nothing" 0 'kernels for sm_90a' check_program
fi
((failures == 0))
