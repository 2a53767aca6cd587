#!/usr/bin/env bash
# get_corpus without a network, with a wrong file at the address, and twice.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

get_corpus=$root/scripts/get_corpus
# repeat TEXT BYTES: lines of TEXT, together at least so many bytes.
repeat() {
  local n
  for ((n = 0; n < $2; n += ${#1} + 1)); do printf '%s\n' "$1"; done
}
mkdir -p "$scratch/fortunes" "$scratch/empty"
for name in art wisdom; do
  repeat $'A saying of some length, as they come.\n%' 80000 >"$scratch/fortunes/$name"
  echo 'an index' >"$scratch/fortunes/$name.dat"
done
echo 'not Shakespeare' >"$scratch/wrong.txt"
export CORPUS_URL=http://127.0.0.1:9/nothing FORTUNES_DIR=$scratch/fortunes

expect 'no file named' 2 'expected the file to write' "$get_corpus"
expect 'two files named' 2 "second argument 'b'" "$get_corpus" a b
expect 'offline: fortunes' 0 'fortunes' "$get_corpus" "$scratch/new/corpus.txt"
holds 'fortunes: the texts without separators and indices' \
  bash -c '(($(stat -c %s "$1") > 150000)) && ! grep -qE "^%|index" "$1"' - "$scratch/new/corpus.txt"
before=$(stat -c %Y%i "$scratch/new/corpus.txt")
expect 'twice: nothing to do' 0 'is there already' "$get_corpus" "$scratch/new/corpus.txt"
holds 'twice: the file is the same' test "$before" = "$(stat -c %Y%i "$scratch/new/corpus.txt")"
expect 'a wrong checksum is refused' 0 'the download is not tiny Shakespeare' \
  env CORPUS_URL="file://$scratch/wrong.txt" "$get_corpus" "$scratch/second.txt"
holds 'a wrong checksum: fortunes instead' cmp "$scratch/new/corpus.txt" "$scratch/second.txt"

export FORTUNES_DIR=$scratch/empty
expect 'neither: says what to give' 1 'give any text file' "$get_corpus" "$scratch/third.txt"
holds 'neither: nothing is left behind' bash -c '! compgen -G "$1*"' - "$scratch/third.txt"
exit $((failures > 0))
