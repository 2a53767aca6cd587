#!/usr/bin/env bash
# The peer of `quern bench decode` generates the same tokens as transformers from the same weights,
# prints the row's keys, and names the mode that ran.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

if ! python3 -c 'import torch' 2>"$scratch/output"; then
  echo 'skip torch_decode.py: no torch in python3'
  exit 0
fi
peer() { python3 "$root/benchmarks/peers/torch_decode.py" --device cpu --size toy --vocab 300 --ctx 64 --prompt_tokens 8 "$@"; }
# The weights that a step reads: 300 x 256 of the head, 4 x (4 x 256 x 256 + 3 x 256 x 768) and norms, in 2 bytes.
row='"size": "toy", "precision": "bf16", "way": "eager", "vocab_size": 300, "batch": 2, "prompt": 8, "ms": '
expect 'a row' 0 "$row" peer --mode eager --batch 2 --measured 4
expect 'the weights that it reads' 0 '"weight_gb": 0.007' peer --mode eager --measured 4
expect 'a mode that fails' 0 'mode graph failed, trying the next: a CUDA graph needs a GPU' peer --mode graph --measured 4
expect 'and the one that ran' 0 '"way": "eager"' peer --mode graph --measured 4 --temperature 0
expect 'a context that is too short' 2 '--ctx is 64, expected at least 65' peer --measured 48
expect 'no rows' 2 '--batch is 0, expected at least 1' peer --batch 0
status=0
python3 "$root/tests/tools/check_torch_decode.py" >"$scratch/output" 2>&1 || status=$?
case $status in
  0) ok "the tokens of transformers' Llama" ;;
  77) echo "skip the tokens of transformers' Llama: $(tail -n 1 "$scratch/output")" ;;
  *) fail "the tokens of transformers' Llama" ;;
esac
exit $((failures > 0))
