#!/usr/bin/env bash
# Out of memory at the program's level: the report, the exit code, and a snapshot that Python's
# standard library reads. Needs a built quern: QUERN, or that of the preset that scripts/test builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=$(realpath -m "${QUERN:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}")
checker=$root/tests/tools/check_memory_snapshot.py
if [[ ! -x $quern ]] || ! command -v python3 >/dev/null; then
  echo 'skip out of memory: no quern, or no python3'
  exit 0
fi

seq 20000 >"$scratch/text.txt"
width=32
train() {
  "$quern" train --device cpu --train "$scratch/text.txt" --out "$1" --d_model "$width" --d_ff 64 \
    --layers 2 --heads 4 --ctx 64 --steps 2 --eval_every 0 --sample_every 0 "${@:2}"
}
expect 'a limit that is enough' 0 '' train "$scratch/enough" --batch 2 --memory_limit 64
holds 'no snapshot without need' test ! -e "$scratch/enough/memory.pickle"
expect 'out of memory: the largest allocations' 1 'The largest of' \
  train "$scratch/run" --batch 64 --memory_limit 8
expect 'out of memory: what fits' 1 'fits  batch = ' train "$scratch/again" --batch 64 --memory_limit 8
expect 'the snapshot holds together' 0 '"ooms": 1' python3 "$checker" "$scratch/run/memory.pickle"
expect 'the snapshot is complete' 0 '"dropped": 0' python3 "$checker" "$scratch/run/memory.pickle"
head -c 5000 "$scratch/run/memory.pickle" >"$scratch/cut.pickle"
expect 'a snapshot that was cut is refused' 1 '' python3 "$checker" "$scratch/cut.pickle"
width=256
expect 'a wider model' 0 '' train "$scratch/wide" --batch 1
cd "$scratch"
expect 'generate: out of memory' 1 'In use by category' \
  "$quern" generate "$scratch/wide" --device cpu --memory_limit 1
holds 'generate: the snapshot is in the working folder' python3 "$checker" memory.pickle
rm -f memory.pickle
expect 'eval: out of memory' 1 'Predicted need of a forward' \
  "$quern" eval "$scratch/enough" "$scratch/text.txt" --device cpu --batch 512 --memory_limit 8
holds 'eval: the snapshot is in the working folder' python3 "$checker" memory.pickle
expect 'a negative limit is refused' 2 'memory_limit' train "$scratch/no" --memory_limit -1
exit $((failures > 0))
