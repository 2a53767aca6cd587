#!/usr/bin/env bash
# branch_table.py reports branches not taken, honours excuses, and rejects excuses that explain nothing.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir -p "$scratch/src/part" "$scratch/src/bare" "$scratch/build"
cd "$scratch"
cat >src/part/sign.h <<'CODE'
#pragma once
#include <stdexcept>
#include <string>
template <class T>
int sign(T x) {
  if (x < 0) return -1;
  return x > 0 ? 1 : 0;
}
CODE
cat >src/part/part.cpp <<'CODE'
#include "sign.h"
#include <vector>
std::string name(int x) {
  const std::vector<std::string> names{"one", "two"};  // its destructors loop, on the way of an exception too
  if (x < 0)
    throw std::runtime_error("negative");
  switch (x) {
    case 1: return names.front();
    case 2: return names.back();
    default: break;
  }
  return std::to_string(x);
}
int guarded(int x) {
  static const std::string first = name(1);
  try {
    return static_cast<int>(name(x).size() + first.size());
  } catch (const std::exception& error) {
    if (std::string(error.what()).empty()) return 1;
    return 0;
  }
}
int main(int count, char**) {
  int sum = sign(count) + sign(0.0);
  if (count > 1) sum += sign(-1);
  for (int x = 1; x < count + 3; ++x) sum += guarded(x);
  if (count > 2) sum += guarded(-1);
  return sum < 0;
}
CODE
(cd build && g++ -O0 --coverage -fprofile-update=atomic "-fprofile-filter-files=$scratch/src/" "$scratch/src/part/part.cpp" -o part)
table() { "$root/scripts/branch_table.py" "$@" build src/part; }
lacks() { ! grep -qF -- "$1" "$scratch/log"; }

expect 'nothing has run' 1 'src/part: 0.00 % of 19 branches' table
build/part
expect 'a branch not taken' 1 'src/part/part.cpp:5: 1 of 2: if (x < 0)' table
cp output log
holds 'a handler without an exception' grep -q '^src/part/part.cpp:19: 2 of 2: ' log
holds 'a template of which each instantiation takes another way' lacks 'sign.h:7'
holds 'a negative number was not there' grep -q '^src/part/sign.h:6: 1 of 2: ' log
holds 'the sum' grep -q '^src/part .*  19  *13  *68.42%' log
holds 'no loop of destructors, no guard' lacks 'part.cpp:4:'
holds 'no choice of a handler' lacks 'part.cpp:18:'
holds 'no closing bracket' lacks ': }'
build/part more
expect 'counts add up over runs' 1 ' 19     15   78.95%' table
cp output log
holds 'what the second run took' lacks 'sign.h:6'
expect 'a lower demand, but branches without a reason' 1 '3 lines have branches not taken' table --least 50

cat >excuses <<'TEXT'
# The only excuses.

src/part/part.cpp | if (x < 0) | no caller passes a negative number
src/part/part.cpp | error.what()).empty() | the same
src/part/part.cpp | (count > 2) | the same
TEXT
expect 'every branch has a reason' 0 '' table --least 50 --excuses excuses
cp output log
holds 'it shows' grep -q '^src/part .* 4$' log
expect 'an excuse does not raise the percentage' 1 'branches are taken, expected 95' table --excuses excuses
echo 'src/part/part.cpp | case 1: | always taken' >>excuses
expect 'a stale excuse' 1 'excuses:6: no branch of src/part/part.cpp is not taken in a line with: case 1:' \
  table --least 50 --excuses excuses
echo 'src/part/part.cpp | case 1:' >excuses
expect 'an excuse without a reason' 1 'excuses:1: expected FILE | source text | reason' table --excuses excuses
build/part more and more
expect 'all taken' 1 'src/part/part.cpp:19: 1 of 2' table
expect 'a file left out' 0 '100.00%' table --skip src/part/part.cpp
expect 'a folder without branches' 1 'src/bare: 0.00 % of 0 branches' "$root/scripts/branch_table.py" build src/bare
exit $((failures > 0))
