#!/usr/bin/env bash
# benchmarks/compare_collectives puts Quern's rows beside PyTorch's, and the record becomes a table.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir -p "$scratch/bin" "$scratch/root/benchmarks/peers" "$scratch/results"
cp "$root/benchmarks/compare_collectives" "$scratch/root/benchmarks/"
printf '#!/bin/sh\necho "Test GPU"\n' >"$scratch/bin/nvidia-smi"
row() {
  echo "{\"peer\": \"$1\", \"collective\": \"${2% *}\", \"place\": \"${2#* }\", \"engine\": \"NCCL 2.28.$5\", \"ranks\": 2, \"bytes\": $3, \"us\": $4, \"busbw_gb_s\": $5.5}"
}
cat >"$scratch/bin/quern" <<PROGRAM
#!/bin/sh
[ "\$1" = info ] && { echo "  version        0.1.0 (abc1234)"; exit; }
[ "\$*" = "bench collectives --gpus 2 --json" ] || exit 3
echo '$(row quern 'all_reduce in' 1024 10.0 3)'
echo '$(row quern 'all_reduce out' 1024 11.0 3)'
echo '$(row quern 'ordered_all_reduce in' 1048576 20.0 3)'
PROGRAM
chmod +x "$scratch/bin/"*
export PATH="$scratch/bin:$PATH"
compare() {
  "$scratch/root/benchmarks/compare_collectives" --quern "$scratch/bin/quern" --record "$scratch/results/c.json" "$@"
}

echo "raise SystemExit('no torch')" >"$scratch/root/benchmarks/peers/torch_collectives.py"
expect 'a peer that fails' 1 'ended with 1: no torch' compare --gpus 2
holds 'no record of it' test ! -e "$scratch/results/c.json"
expect 'other arguments' 1 'ended with 3: no output' compare --gpus 3

echo "print('''$(row torch-2.11 'all_reduce in' 1024 12.5 9)''')" >"$scratch/root/benchmarks/peers/torch_collectives.py"
compare --gpus 2 >"$scratch/table"
expect 'both' 0 'all_reduce             in           1024       10.0      3.50       12.5      9.50' cat "$scratch/table"
expect 'out of place' 0 'all_reduce             out          1024       11.0      3.50          -         -' cat "$scratch/table"
expect 'one alone' 0 'ordered_all_reduce     in        1048576       20.0      3.50          -         -' cat "$scratch/table"
printf '<!-- results:compare_collectives -->\n<!-- /results:compare_collectives -->\n' >"$scratch/page"
"$root/scripts/readme_tables.py" --page "$scratch/page" --results "$scratch/results"
expect 'a table' 0 '| Test GPU | 2 | all_reduce | in | 10.0 / 12.5 | - / - |' cat "$scratch/page"
expect 'its command' 0 'benchmarks/compare_collectives --gpus 2` (Test GPU' cat "$scratch/page"
exit $((failures > 0))
