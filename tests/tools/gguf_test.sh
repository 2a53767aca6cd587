#!/usr/bin/env bash
# Exports of the Llama, Qwen2 and Qwen3 families have only tensors that GGUF has a name for, and come
# back from a GGUF file unchanged. Skipped without gguf (PyPI).
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=${QUERN_PROGRAM:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}
[[ -x $quern ]] || { echo "skip GGUF: $quern is not built" && exit; }
if ! python3 -c 'import gguf' 2>/dev/null; then
  echo "skip GGUF: needs pip install gguf"
  exit
fi
for _ in {1..50}; do echo 'To be, or not to be, that is the question'; done >"$scratch/text.txt"

# round_trip ARCHITECTURE TENSORS FLAG...: train one step, export, write and read a GGUF file.
round_trip() {
  local name=$1 tensors=$2
  shift 2
  holds "a run of $name's shape" "$quern" train --size toy --layers 2 --d-model 16 --d-ff 32 --heads 2 --ctx 16 \
    --batch 2 --device cpu --eval-every 0 --sample-every 0 --steps 1 --train "$scratch/text.txt" \
    --out "$scratch/$name" "$@"
  holds "its export" "$quern" export "$scratch/$name" "$scratch/$name.hf" --latest
  expect "its tensors in a GGUF file" 0 "$name: $tensors tensors" \
    python3 "$root/tests/tools/write_gguf.py" "$scratch/$name.hf" "$name" "$scratch/$name.gguf"
}
round_trip llama 21 --tied false
round_trip qwen2 27 --tied false --qkv-bias
round_trip qwen3 25 --tied false --qk-norm
((failures == 0))
