#!/usr/bin/env bash
# `tensorboard = true`: TensorBoard's own reader finds the numbers of metrics.jsonl in the event
# files, of a new run and of a resumed one. Skipped without tensorboard (PyPI).
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=${QUERN_PROGRAM:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}
[[ -x $quern ]] || { echo "skip TensorBoard's reader: $quern is not built" && exit; }
if ! python3 -c 'import tensorboard' 2>/dev/null; then
  echo "skip TensorBoard's reader: needs pip install tensorboard"
  exit
fi
run=$scratch/run
read_events() { expect "$1" 0 "$2" python3 "$root/tests/tools/read_events.py" "$run"; }
train() {
  "$quern" train --size toy --layers 1 --d-model 16 --d-ff 32 --heads 2 --ctx 16 --batch 2 --device cpu \
    --eval-every 4 --eval-batches 2 --checkpoint-every 4 --sample-every 0 --log-every 1 --tensorboard "$@"
}
for _ in {1..400}; do echo 'To be, or not to be, that is the question'; done >"$scratch/text.txt"

holds 'a run that writes event files' train --train "$scratch/text.txt" --steps 10 --warmup 2 --out "$run"
read_events "TensorBoard's reader finds the metrics" '1 files, 14 events, 10 tags'
holds 'going back to step 4' train --resume "$run/checkpoints/step_00000004" --steps 12 --warmup 2
read_events "TensorBoard's reader follows the resumed run" '2 files'
python3 - "$run" <<'PYTHON'
import pathlib, sys
path = sorted(pathlib.Path(sys.argv[1]).glob("events.out.tfevents.*"))[-1]
data = bytearray(path.read_bytes())
data[len(data) // 2] ^= 1
path.write_bytes(data)
PYTHON
expect 'a flipped bit ends what it reads' 1 'expected' python3 "$root/tests/tools/read_events.py" "$run"
((failures == 0))
