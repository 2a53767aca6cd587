# Shared by the scripts here: messages, the system check, packages, the number of jobs.
# shellcheck shell=bash disable=SC2034

QUERN_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# ccache finds what another checkout of the same sources has compiled.
export CCACHE_BASEDIR=$QUERN_ROOT CCACHE_NOHASHDIR=1

BUILD_PACKAGES=(g++ cmake ninja-build ccache git ca-certificates curl python3 libeigen3-dev
  libspdlog-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev libpcre2-dev
  libutf8proc-dev libsentencepiece-dev libzstd-dev zlib1g-dev libgloo-dev libgtest-dev)

# Readers of Quern's output and its kernels, and a launcher, for some tests, which are skipped without them.
# PYTHON_READERS are from PyPI.
READER_PACKAGES=(chromium fonts-dejavu-core openmpi-bin)
PYTHON_READERS=(playwright viztracer tensorboard gguf nvidia-cuda-cuobjdump)

say() { printf '== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

usage_error() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  printf 'try %s --help\n' "$0" >&2
  exit 2
}

# Prints the comment block at the top of a script, which is its help.
print_help() { awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$1"; }

# Debian 12 or newer, or Ubuntu 24.04 or newer; WSL2's Ubuntu and Debian are those. On other
# systems the scripts install nothing and use the tools that they find.
system_is_supported=1
check_system() {
  local file=${OS_RELEASE_FILE:-/etc/os-release} id=unknown version=0 name=''
  if [[ -r $file ]]; then
    id=$(sed -n 's/^ID=//p' "$file" | tr -d '"')
    version=$(sed -n 's/^VERSION_ID=//p' "$file" | tr -d '"')
    name=$(sed -n 's/^PRETTY_NAME=//p' "$file" | tr -d '"')
  fi
  case $id in
    debian) version_at_least "${version:-99}" 12 && return ;; # Debian testing has no version
    ubuntu) version_at_least "${version:-0}" 24.04 && return ;;
  esac
  system_is_supported=0
  say "${name:-$id} is not supported: Debian 12, Ubuntu 24.04 and newer ones are, also under WSL2"
  say 'no packages are installed on this system; continuing with the tools that are present'
}

version_at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

# Installs the missing ones of the named packages, or prints what to install.
need_packages() {
  local package missing=() as_root=()
  ((system_is_supported)) || return 0
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      printf 'These packages are missing. Install them and run this again:\n  sudo apt install %s\n' \
        "${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
  "${as_root[@]}" "${install[@]}" "${missing[@]}" >/dev/null 2>&1 && return
  "${as_root[@]}" apt-get update -q >/dev/null || true
  "${as_root[@]}" "${install[@]}" "${missing[@]}" >/dev/null ||
    die "apt-get could not install ${missing[*]}"
}

# Checks the tools that a build needs and their versions.
check_tools() {
  local tool found missing=()
  for tool in "${CXX:-c++}" cmake ninja git python3; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) || die "not found: ${missing[*]}. The packages, by their names in Debian:
  ${BUILD_PACKAGES[*]}"
  found=$(cmake --version | sed -n '1s/cmake version //p')
  version_at_least "$found" 3.25 || die "found cmake $found, 3.25 or newer is needed"
  found=$("${CXX:-c++}" -dumpfullversion -dumpversion)
  version_at_least "$found" 12 || die "found ${CXX:-c++} $found, g++ 12 or newer is needed"
}

# The number of parallel compilers: one a processor, but only with 2 GB of memory each.
build_jobs() {
  local processors memory
  processors=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 2000000) }' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((processors < memory ? processors : memory))
}
