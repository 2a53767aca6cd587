#!/usr/bin/env bash
# The shells complete commands, flags and values, and the man page is well formed. Needs a built quern: QUERN, or
# that of the preset that scripts/test builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=$(realpath -m "${QUERN:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}")
if [[ ! -x $quern ]]; then
  echo 'skip completion: no quern'
  exit 0
fi
mkdir "$scratch/folder"
touch "$scratch/folder/corpus.txt"
cd "$scratch/folder"
PATH=$(dirname "$quern"):$PATH
for shell in bash zsh fish; do "$quern" completion "$shell" >"$scratch/quern.$shell"; done

# Bash's completions of the last word.
in_bash() {
  # shellcheck disable=SC2016
  bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _quern "$1"
           printf "<%s>\n" "${COMPREPLY[@]}"' bash "$scratch/quern.bash" "$@"
}
expect 'bash: a command' 0 '<train>' in_bash "$quern" tr
expect 'bash: a subcommand' 0 '<prepare>' in_bash quern data ''
expect 'bash: help of a command' 0 '<tokenizer>' in_bash quern help tok
expect 'bash: a flag of the command' 0 '<--prompts>' in_bash quern generate run --prom
expect 'bash: a key with dashes' 0 '<--eval-every>' in_bash quern train --eval-e
expect 'bash: a value' 0 '<bf16>' in_bash quern train --precision b
expect 'bash: a value after =' 0 '<toy>' in_bash quern train --size = to
expect 'bash: a file where no word is expected' 0 '<>' in_bash quern train --train ''
expect 'bash: nothing of an unknown command' 0 '<>' in_bash quern no-such-command ''
expect 'bash: the script is installed by its own name' 0 '_quern quern' bash -c \
  "source '$scratch/quern.bash' && complete -p quern"

if command -v zsh >/dev/null; then
  holds 'zsh: the script parses' zsh -n "$scratch/quern.zsh"
else
  echo 'skip zsh: not installed'
fi
if command -v fish >/dev/null; then
  in_fish() { fish --no-config -c "source '$scratch/quern.fish'; complete -C '$1'"; }
  expect 'fish: a command' 0 'train' in_fish 'quern tr'
  expect 'fish: a value' 0 'bf16' in_fish 'quern train --precision b'
  expect 'fish: a file' 0 'corpus.txt' in_fish 'quern train --train cor'
else
  echo 'skip fish: not installed'
fi

"$quern" help --man >"$scratch/quern.1"
if command -v mandoc >/dev/null; then
  holds 'mandoc finds no mistake' mandoc -Tlint -Werror "$scratch/quern.1"
fi
if command -v groff >/dev/null; then
  groff -man -Tascii -ww -rLL=100n "$scratch/quern.1" >"$scratch/text" 2>"$scratch/warnings" || true
  holds 'groff has no warning' test ! -s "$scratch/warnings"
  expect 'the page lists commands and keys' 0 'generate' cat "$scratch/text"
else
  echo 'skip groff: not installed'
fi
exit $((failures > 0))
