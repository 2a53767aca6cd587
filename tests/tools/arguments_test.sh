#!/usr/bin/env bash
# Every script prints its help and rejects unknown arguments; systems and tools are checked.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

for script in build test quickstart get_corpus format check_includes check_sizes coverage; do
  expect "$script --help" 0 "Usage: scripts/$script" "$root/scripts/$script" --help
done
expect '.ci/run --help' 0 'Usage: .ci/run' "$root/.ci/run" --help
for script in build test quickstart get_corpus format check_sizes coverage; do
  expect "$script with an unknown option" 2 '--frobnicate' "$root/scripts/$script" --frobnicate
done
expect 'build with an unknown preset' 2 "unknown preset 'fast'" "$root/scripts/build" fast
expect 'the presets of build' 2 'expected release, debug, asan, cpu or quick' "$root/scripts/build" fast
expect 'test --cpu with an unknown option' 2 '--frobnicate' "$root/scripts/test" --cpu --frobnicate
expect 'build with two presets' 2 "second preset 'cpu'" "$root/scripts/build" release cpu
expect 'quickstart with a missing text' 1 "cannot read '/no/such/file'" \
  "$root/scripts/quickstart" /no/such/file

os_release() { printf 'ID=%s\nVERSION_ID="%s"\nPRETTY_NAME="%s %s"\n' "$1" "$2" "$1" "$2"; }
check_system() {
  os_release "$1" "$2" >"$scratch/os-release"
  # shellcheck disable=SC2016
  OS_RELEASE_FILE=$scratch/os-release bash -c 'source "$1/scripts/lib.sh"; check_system' lib "$root"
}
expect 'Debian 11 is not supported' 0 'debian 11 is not supported' check_system debian 11
expect 'Ubuntu 22.04 is not supported' 0 'Debian 12, Ubuntu 24.04' check_system ubuntu 22.04
expect 'Fedora is not supported' 0 'fedora 40 is not supported' check_system fedora 40
for system in 'debian 12' 'debian 13' 'ubuntu 24.04'; do
  # shellcheck disable=SC2086
  expect "$system is supported" 0 '' check_system $system
  holds "$system is supported without a word" test ! -s "$scratch/output"
done

# Another system works if it has the tools; missing or old tools are named.
os_release arch 1 >"$scratch/os-release"
mkdir "$scratch/bin" "$scratch/old"
printf '#!/bin/sh\necho cmake version 3.22.1\n' >"$scratch/old/cmake"
chmod +x "$scratch/old/cmake"
# shellcheck disable=SC2016
tools='source "$1/scripts/lib.sh"; check_system; need_packages no-such-package; check_tools'
expect 'another system with the tools' 0 'no packages are installed' \
  env OS_RELEASE_FILE="$scratch/os-release" bash -c "$tools" lib "$root"
expect 'another system without a compiler' 1 'not found: no-such-compiler' \
  env OS_RELEASE_FILE="$scratch/os-release" CXX=no-such-compiler bash -c "$tools" lib "$root"
expect 'an old cmake' 1 'found cmake 3.22.1, 3.25 or newer' \
  env OS_RELEASE_FILE="$scratch/os-release" PATH="$scratch/old:$PATH" bash -c "$tools" lib "$root"

# A user who may not install gets the list. The fake dpkg-query knows no package, sudo fails.
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/dpkg-query"
cp "$scratch/bin/dpkg-query" "$scratch/bin/sudo"
chmod +x "$scratch/bin/"*
chmod 755 "$scratch"
as_user=()
if ((EUID == 0)); then
  as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi
cp "$root/scripts/lib.sh" "$scratch/lib.sh"
# shellcheck disable=SC2016
expect 'missing packages are listed' 1 'sudo apt install g++ libexample-dev' \
  "${as_user[@]}" env PATH="$scratch/bin:$PATH" \
  bash -c 'source "$1"; need_packages g++ libexample-dev' lib "$scratch/lib.sh"
exit $((failures > 0))
