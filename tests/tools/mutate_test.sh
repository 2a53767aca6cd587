#!/usr/bin/env bash
# scripts/mutate draws the same mutants of a seed again, edits only code, and tells killed mutants from survivors. The
# compiler, the linker and the tests are scripts here.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

tree=$scratch/tree
mkdir -p "$tree/src/io" "$tree/src/optim" "$tree/tests/io" "$tree/build/mutate/bin" "$scratch/bin"
PATH=$scratch/bin:$PATH
mutate() { "$root/scripts/mutate" --root "$tree" "$@"; }
draws() { mutate --list --count 1000 "$@"; }

cat >"$tree/src/io/drawn.cpp" <<'CODE'
#include "kept/header.h"
#define KEPT(a) a + 1
static_assert(kept < 8, "kept");
// kept = a + b;
template void kept(int, int);
int drawn(const int* x, int rows, int cols) {
  const std::array<int, kept_size<7>> kept{};
  QUERN_CHECK(rows >= 0, "kept: ", rows - cols, " rows, expected ",
              kept + 1);
  const char* text = "kept + 1 < 2";
  parallel_for(rows, row_grain(kept * 4), body);
  int sum = 0;
  for (int i = 0; i < rows; ++i) {
    sum += x[i * cols] * -cols;
  }
  if (sum > 9 && cols != 0) clear(sum);
  return sum - rows;
}
CODE
draws >"$scratch/first"
expect 'a seed draws the same mutants again' 0 '' cmp <(draws) "$scratch/first"
expect 'another seed, another order' 1 '' cmp -s <(draws --seed 2) "$scratch/first"
grep -vE ' (QUERN_CHECK|parallel_for)\(' "$scratch/first" >"$scratch/rest"
holds 'nothing else than code is edited' bash -c '! grep kept "$1"' - "$scratch/rest"
holds 'no message and no size of work is edited' bash -c '! grep -E "rows \+ cols|kept (\+ 2|- 1|\* 5)" "$1"' - "$scratch/first"
while read -r edit; do
  holds "drawn: $edit" grep -qF -- "$edit" "$scratch/first"
done <<'EDITS'
sign: sum += x[i * cols] * -cols; -> sum -= x[i * cols] * -cols;
sign: sum += x[i * cols] * -cols; -> sum += x[i * cols] * cols;
index: sum += x[i * cols] * -cols; -> sum += x[i * cols + 1] * -cols;
index: sum += x[i * cols] * -cols; -> sum += x[i * rows] * -cols;
bound: for (int i = 0; i < rows; ++i) { -> for (int i = 0; i <= rows; ++i) {
bound: for (int i = 0; i < rows; ++i) { -> for (int i = 0; i < rows - 1; ++i) {
term: sum += x[i * cols] * -cols; -> sum += x[i] * -cols;
term: sum += x[i * cols] * -cols; -> ;
term: if (sum > 9 && cols != 0) clear(sum); -> if (sum > 9 && cols != 0) ;
term: return sum - rows; -> return sum;
constant: for (int i = 0; i < rows; ++i) { -> for (int i = 1; i < rows; ++i) {
condition: if (sum > 9 && cols != 0) clear(sum); -> if (sum > 9 || cols != 0) clear(sum);
condition: if (sum > 9 && cols != 0) clear(sum); -> if (!(sum > 9 && cols != 0)) clear(sum);
EDITS

# Four mutants: two of seen.cpp, which a test reads, two of unseen.cpp; a third file does not compile when edited.
rm "$tree/src/io/drawn.cpp"
printf 'int seen(int a, int b) {\n  return a + b;\n}\n' >"$tree/src/io/seen.cpp"
printf 'int unseen(int a, int b) {\n  return a * b;\n}\n' >"$tree/src/io/unseen.cpp"
printf 'int strict(int a, int b) {\n  return a - b;\n}\n' >"$tree/src/optim/strict.cpp"
printf 'TEST(Seen, Adds) {}\n' >"$tree/tests/io/seen_test.cpp"
touch "$tree/build/mutate/build.ninja"
printf '#!/bin/sh\n' >"$scratch/bin/cmake"
printf '#!/bin/sh\necho "%s -o bin/quern_tests rest"\n' "$scratch/link" >"$scratch/bin/ninja"
cat >"$scratch/compile" <<'PROGRAM'
#!/bin/sh
echo "$4" >>"$(dirname "$0")/compiled"
case $4 in *strict*) exit 1 ;; esac
cp "$4" "$2"
PROGRAM
printf '#!/bin/sh\n{ cat %s/tests; echo "grep -q unseen $1 || grep -q a.+.b $1 || fail Seen.Adds"; } >"$3"; chmod +x "$3"\n' \
  "$scratch" >"$scratch/link"
cat >"$scratch/tests" <<'PROGRAM'
#!/bin/sh
case $* in
  *--gtest_list_tests*) printf 'Seen.\n  Adds\n  Flakes\n' && exit ;;
  *json:*) echo '{"testsuites": []}' >"${2#*json:}" ;;
esac
fail() { echo "[ RUN      ] $1" && echo "[  FAILED  ] $1 (0 ms)" && exit 1; }
flags=${1#*=}
once=$(dirname "$0")/once
if [ -e "$once" ] && grep -q Flakes "$flags"; then rm "$once" && fail Seen.Flakes; fi
grep -q Adds "$flags" || exit 0
PROGRAM
cp "$scratch/tests" "$tree/build/mutate/bin/quern_tests"
chmod +x "$scratch"/bin/* "$scratch/compile" "$scratch/link" "$tree/build/mutate/bin/quern_tests"
for file in io/seen io/unseen optim/strict; do
  printf ', {"file": "%s", "directory": "/", "command": "%s -o x -c y"}' "$tree/src/$file.cpp" "$scratch/compile"
done | sed 's/^,/[/; s/$/]/' >"$tree/build/mutate/compile_commands.json"
mkdir -p "$tree/build/mutate/mutant"
touch "$tree/build/mutate/mutant/once"

expect 'survivors give exit status 1' 1 '3 of 5 mutants killed, 2 survived; besides 0 equivalent ones and 2 that' mutate
cp "$scratch/output" "$scratch/log"
holds 'a test that fails kills' grep -q 'return a + b; -> return a - b;: killed by Seen.Adds$' "$scratch/log"
holds 'a planted survivor' grep -q 'return a \* b; -> return a;: SURVIVED$' "$scratch/log"
holds 'an edit that does not compile' grep -q 'return a - b; -> return a;: does not compile$' "$scratch/log"
holds 'a test that fails only once does not kill' bash -c '! grep Flakes "$1" && ! test -e "$2/once"' - "$scratch/log" \
  "$tree/build/mutate/mutant"
compiled=$(wc -l <"$scratch/compiled")
expect 'a second run takes the results' 1 '3 of 5 mutants killed' mutate
holds 'and compiles nothing' test "$(wc -l <"$scratch/compiled")" = "$compiled"
expect 'survivors run again' 1 'return a;: SURVIVED' mutate --survivors
holds 'and only they' test "$(wc -l <"$scratch/compiled")" = $((compiled + 2))
holds 'the sources stay' grep -q 'a + b' "$tree/src/io/seen.cpp"
for kept in a b; do
  echo "src/io/unseen.cpp | return a * b; | return $kept; | planted"
done >"$tree/tests/equivalent_mutants.txt"
expect 'equivalent mutants do not count' 0 '3 of 3 mutants killed, 0 survived; besides 2 equivalent ones' mutate
expect 'a bad count' 2 '--count' mutate --count 0
exit $((failures > 0))
