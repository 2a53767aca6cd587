#!/usr/bin/env bash
# The Debian package contains a program that runs, with completions, man page and documents. The
# Dockerfile compiles everything and needs the network: it is built only if QUERN_TEST_DOCKER=1.
# Needs a built quern: that of the preset that scripts/test builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

build=$root/build/${QUERN_TEST_PRESET:-release}
if [[ ! -x $build/bin/quern ]] || ! command -v cpack >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo 'skip the Debian package: no quern, cpack or dpkg-deb'
else
  expect 'the package is built' 0 'generated' \
    cpack -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/package"
  package=$(find "$scratch/package" -maxdepth 1 -name 'quern_*.deb')
  holds 'it unpacks' dpkg-deb -x "$package" "$scratch/root"
  usr=$scratch/root/usr
  expect 'its program runs' 0 'quern ' "$usr/bin/quern" --version
  for file in bash-completion/completions/quern zsh/site-functions/_quern \
    fish/vendor_completions.d/quern.fish man/man1/quern.1 doc/quern/LICENSE quern/configs/small.toml; do
    holds "it has $file" test -s "$usr/share/$file"
  done
  expect 'it has no headers and libraries' 0 '' test ! -e "$usr/include" -a ! -e "$usr/lib"
  if command -v dpkg-shlibdeps >/dev/null && command -v file >/dev/null; then
    expect 'it depends on the libraries that it links' 0 'libc6' dpkg-deb -f "$package" Depends
  fi
fi

if [[ ${QUERN_TEST_DOCKER:-} != 1 ]] || ! docker info >/dev/null 2>&1; then
  echo 'skip the Docker image: no Docker engine, or QUERN_TEST_DOCKER=1 is not set'
else
  expect 'the Docker image is built' 0 '' docker build -q -t quern-test "$root"
  expect 'its program runs' 0 'quern ' docker run --rm quern-test --version
  docker image rm quern-test >/dev/null
fi
exit $((failures > 0))
