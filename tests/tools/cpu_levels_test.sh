#!/usr/bin/env bash
# The levels of the CPU kernels (cmake/CpuLevels.cmake): no function of one is visible under a plain name, the program
# runs at each level that it names, and another level is refused. Their loops call no function.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

build=$root/build/${QUERN_TEST_PRESET:-release}
quern=$build/bin/quern
levels=$("$quern" info | sed -n 's/^ *kernels  *[a-z0-9_]*, of //p' | tr -d ,)

for level in $levels; do
  case $level in
    avx2 | avx512 | avx512_bf16 | amx) expect "products at level $level" 0 64 "$quern" bench matmul --shapes 64x64x64 --device cpu --cpu_level "$level" ;;
  esac
done
# A level that the processor or this build lacks.
for level in avx2 avx512 avx512_bf16 amx; do
  [[ " $levels " == *" $level "* ]] ||
    expect "level $level is refused" 2 "cpu_level: found $level, expected auto; this build has" \
      "$quern" bench matmul --shapes 64x64x64 --device cpu --cpu_level "$level"
done
expect 'an unknown level is refused' 2 'one of auto, avx2, avx512' \
  "$quern" bench matmul --shapes 64x64x64 --device cpu --cpu_level sse

# Names that an object offers to others and that do not end in its level's name.
plain_names() { nm --defined-only --extern-only "$1" | awk -v end=".$2" 'substr($3, length($3) - length(end) + 1) != end'; }
# A function of kernels/common/math.h that is called, and not inlined, leaves a loop scalar: a tenth of the speed.
math_calls() { nm -C --defined-only "$1" | grep -E 'quern::kernels::math::[a-z_0-9]+(<float>)?\(float\)' || true; }
echo 'namespace quern::kernels::math { float exp(float x) { return x; } }' >"$scratch/planted.cpp"
"${CXX:-c++}" -c "$scratch/planted.cpp" -o "$scratch/planted.o"
holds 'a planted call is seen' test -n "$(math_calls "$scratch/planted.o")"
objects=0
for object in "$build"/generated/cpu_levels/cpu_kernels.*.o; do
  [[ -f $object ]] || continue
  level=${object%.o} objects=$((objects + 1))
  level=${level##*.}
  plain_names "$object" "$level" >"$scratch/output"
  if [[ -s $scratch/output ]]; then fail "no plain name in the kernels of $level"; else ok "no plain name in the kernels of $level"; fi
  # and the check would see one
  [[ -n $(plain_names "$object" none) ]] || fail "the kernels of $level have names"
  math_calls "$object" >"$scratch/output"
  if [[ -s $scratch/output ]]; then fail "no math function is called in those of $level"; else ok "no math function is called in those of $level"; fi
done
((objects > 0)) || echo 'skip the names of each level: this build has one level'
exit $((failures > 0))
