# Shared by the tests of the scripts: each test prints "ok NAME", "FAIL NAME" or "skip NAME".
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

ok() { printf 'ok %s\n' "$1"; }
fail() {
  printf 'FAIL %s\n' "$1"
  [[ ! -s $scratch/output ]] || sed 's/^/  | /' "$scratch/output"
  failures=$((failures + 1))
}

# expect NAME STATUS TEXT COMMAND...: the command ends with STATUS and its output contains TEXT.
expect() {
  local name=$1 status=$2 text=$3 found=0
  shift 3
  "$@" >"$scratch/output" 2>&1 </dev/null || found=$?
  if ((found != status)); then
    printf '  exit status %d, expected %d\n' "$found" "$status"
    fail "$name"
  elif [[ -n $text ]] && ! grep -qF -- "$text" "$scratch/output"; then
    printf '  output lacks: %s\n' "$text"
    fail "$name"
  else
    ok "$name"
  fi
}

# holds NAME COMMAND...: the command succeeds.
holds() {
  local name=$1
  shift
  if "$@" >"$scratch/output" 2>&1; then ok "$name"; else fail "$name"; fi
}
