#!/usr/bin/env bash
# benchmarks/compare_ranks trains on one GPU and on several, ends each run after its rows, keeps a
# record case by case, and the record becomes a table.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir "$scratch/bin" "$scratch/results"
cat >"$scratch/bin/nvidia-smi" <<'PROGRAM'
#!/bin/sh
[ "$1" = topo ] || { echo "Test GPU"; exit; }
printf '\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\n'
printf 'GPU0\t X \tNV18\tSYS\tSYS\tPIX\nGPU1\tNV18\t X \tSYS\tSYS\tPIX\n'
printf 'GPU2\tSYS\tSYS\t X \tNV18\tPIX\nGPU3\tSYS\tSYS\tNV18\t X \tPIX\nNIC0\tPIX\tPIX\tPIX\tPIX\t X \n'
PROGRAM
cat >"$scratch/bin/quern" <<'PROGRAM'
#!/bin/sh
[ "$1" = info ] && { echo "  version        0.1.0 (abc1234)"; exit; }
echo "${CUDA_VISIBLE_DEVICES:-all} $*" >>"$LOG"
ms=100 out=
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2 ;;
    --gpus) ms=125 ;;
    --parallel) [ "$2" = zero2 ] && { echo "quern: no memory" >&2; echo "quern: rank 0 ended" >&2; exit 1; } ;;
  esac
  shift
done
[ "$CUDA_VISIBLE_DEVICES" = 1 ] && ms=110
mkdir -p "$out"
rows="900 800 $ms $ms $ms $ms"
[ -n "$EARLY" ] && rows="900 800 $ms"
for row in $rows; do
  echo "{\"step\":5,\"ms\":$row.0,\"tokens_per_s\":2000.0,\"memory_bytes\":2097152}"
done >"$out/metrics.jsonl"
[ -n "$EARLY" ] && { echo "quern: rank 0 of 4: late" >&2; exit 1; }
exec sleep 60
PROGRAM
chmod +x "$scratch/bin/"*
export PATH="$scratch/bin:$PATH" LOG="$scratch/log"

compare() {
  "$root/benchmarks/compare_ranks" --quern "$scratch/bin/quern" --record "$scratch/results/ranks.json" "$@"
}

compare --gpus 2 --strategies zero1,zero2 small >"$scratch/table"
expect 'a strategy' 0 'small               2 zero1        125.00    110.00  88.0 %       2000       2' cat "$scratch/table"
expect 'one that fails' 0 'small               2 zero2     quern: no memory' cat "$scratch/table"
holds 'one GPU at a time' grep -q '^1 train --size small .*--accumulate 1 --precision bf16' "$LOG"
holds 'all together' grep -q '^all train --size small .*--gpus 2 --parallel zero1 ' "$LOG"
expect 'a case without one GPU' 0 '8B-long             4 fsdp         125.00' compare --gpus 4 --strategies fsdp 8B-long
expect 'one that ends early' 0 '8B-long             4 zero1     quern: rank 0 of 4: late' \
  env EARLY=1 "$root/benchmarks/compare_ranks" --quern "$scratch/bin/quern" --gpus 4 --strategies zero1 8B-long

# PyTorch's step beside it: the first line of its output.
cat >"$scratch/bin/torchrun" <<'PROGRAM'
#!/bin/sh
echo "torchrun ${*##*/}" >>"$LOG"
echo 'a warning'
case "$*" in
  *' ddp') echo '{"mode": "ddp", "batch": 32, "ctx": 1024, "ms": 80.0, "efficiency": 0.96, "peak_mib": 7}' ;;
  *' fsdp') echo '{"mode": "fsdp", "batch": 1, "ctx": 32768, "ms": 5800.0, "peak_mib": 9}' ;;
esac
exec sleep 60
PROGRAM
chmod +x "$scratch/bin/torchrun"
expect "PyTorch's share" 0 'small               2 torch         80.00      0.00  96.0 %     819200       7' \
  compare --gpus 2 --strategies ddp --torch small
expect "PyTorch's long step" 0 '8B-long             4 torch       5800.00      0.00       -      22599       9' \
  compare --gpus 4 --strategies fsdp --torch 8B-long
expect 'a case in FP8' 0 '8B-long-host-fp8    2 fsdp' compare --gpus 2 --strategies fsdp 8B-long-host-fp8
holds 'its flags' grep -q '^all train .*--offload_activations true --precision fp8 --ctx' "$LOG"
holds 'a record' python3 -c 'import json, sys
cases = json.load(open(sys.argv[1]))["result"]["cases"]
assert sorted(cases) == ["8B-long-4-fsdp", "8B-long-4-torch", "8B-long-host-fp8-2-fsdp", "small-2-ddp", "small-2-torch",
                         "small-2-zero1", "small-2-zero2"]
assert cases["small-2-zero1"]["commit"] == "abc1234" and "share" not in cases["8B-long-4-fsdp"]' "$scratch/results/ranks.json"

printf '<!-- results:compare_ranks -->\n<!-- /results:compare_ranks -->\n' >"$scratch/page"
"$root/scripts/readme_tables.py" --page "$scratch/page" --results "$scratch/results"
expect 'a table' 0 '| Test GPU | small | 2 | NV18 | zero1 | 125.00 | 110.00 | 88.0 % | 2000 | 2 |' cat "$scratch/page"
expect 'links of two kinds' 0 '| Test GPU | 8B-long | 4 | NV18 SYS | fsdp | 125.00 |' cat "$scratch/page"
expect 'its command' 0 'compare_ranks --gpus 2 --strategies zero1,zero2,ddp,fsdp --torch small 8B-long-host-fp8` (Test GPU' cat "$scratch/page"

expect 'another machine' 1 "is a record of 'Test GPU', this is 'Other'" compare --machine Other small
expect 'an unknown case' 2 "invalid choice: 'smal'" compare smal
exit $((failures > 0))
