#!/usr/bin/env bash
# quickstart in a copy with a stub of scripts/build and of the program; the groups of the preset that it builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

tree=$scratch/tree
mkdir -p "$tree/scripts" "$scratch/bin"
cp "$root/scripts/quickstart" "$root/scripts/lib.sh" "$root/scripts/get_corpus" "$tree/scripts"
cat >"$tree/scripts/build" <<'STUB'
#!/bin/sh
echo "build $*"
mkdir -p "build/$1/bin"
printf '#!/bin/sh\necho "quern $*"\n' >"build/$1/bin/quern"
chmod +x "build/$1/bin/quern"
STUB
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/nvidia-smi"
chmod +x "$tree/scripts/build" "$scratch/bin/nvidia-smi"
mkdir "$scratch/fortunes"
for ((n = 0; n < 20000; ++n)); do echo 'A line of text.'; done | tee "$scratch/own.txt" >"$scratch/fortunes/art"
quickstart() {
  env PATH="$scratch/bin:$PATH" CORPUS_URL=http://127.0.0.1:9/nothing FORTUNES_DIR="$scratch/fortunes" \
    "$tree/scripts/quickstart" "$@"
}
expect 'without a GPU: the preset quick' 0 'build quick --target quern' quickstart
expect 'without a GPU: a model for a CPU' 0 'quern train --config configs/toy-cpu.toml --train data/corpus.txt' quickstart
holds 'a corpus' cmp "$scratch/own.txt" "$tree/data/corpus.txt"
quickstart_with_text() { quickstart "$scratch/own.txt"; }
expect 'the given text comes before a corpus' 0 "--train $scratch/own.txt" quickstart_with_text
quickstart >"$scratch/closing"
for command in report watch generate export; do
  holds "the closing lines name $command" grep -q "^  build/quick/bin/quern $command runs/quickstart-1 " "$scratch/closing"
done

# groups LIMIT FILE...: which files share a group, "a b|c".
groups() {
  (cd "$scratch/src" && python3 "$root/cmake/unity_groups.py" . "$@") >"$scratch/groups"
  awk '$1 != "own" { files[$1] = files[$1] (files[$1] != "" ? " " : "") $2; if (!seen[$1]++) order[++n] = $1 }
    END { for (i = 1; i <= n; ++i) printf "%s%s", (i > 1 ? "|" : ""), files[order[i]] }' "$scratch/groups"
}
# source NAME LINE...: a file with these lines in an anonymous namespace.
mkdir "$scratch/src"
source_file() {
  local name=$1
  shift
  printf '%s\n' 'namespace quern {' 'namespace {' "$@" '}  // namespace' '}  // namespace quern' >"$scratch/src/$name"
}
source_file a.cpp 'int helper(int x) {' '  return x;' '}'
source_file b.cpp 'int other(int helper) {' '  return helper;' '}'
source_file c.cpp 'double helper(double y) {' '  return y;' '}'
expect 'groups: files without a clash share one' 0 'a.cpp b.cpp' groups 100 a.cpp b.cpp
expect 'groups: one name in two anonymous namespaces' 0 'a.cpp b.cpp|c.cpp' groups 100 a.cpp b.cpp c.cpp
expect 'groups: the limit of lines' 0 'a.cpp|b.cpp' groups 10 a.cpp b.cpp
echo 'int helper(float z);' >"$scratch/src/d.h"
printf '#include "d.h"\n' >"$scratch/src/d.cpp"
expect 'groups: a name that a header declares' 0 'a.cpp|d.cpp' groups 100 a.cpp d.cpp
source_file e.cpp 'constexpr int kSize = 3;'
source_file f.cpp 'constexpr double kSize = 0.5;'
expect 'groups: constants of one name' 0 'e.cpp f.cpp' groups 100 e.cpp f.cpp
holds 'groups: each has its own constant' grep -qx 'own kSize' "$scratch/groups"
printf 'using Json = int;\n' >"$scratch/src/g.cpp"
printf 'using Json = double;\n' >"$scratch/src/h.cpp"
expect 'groups: aliases of one name' 0 'g.cpp|h.cpp' groups 100 g.cpp h.cpp
exit $((failures > 0))
