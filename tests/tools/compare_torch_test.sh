#!/usr/bin/env bash
# benchmarks/compare_torch runs both programs in turn, compares medians, and its record becomes a table.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir "$scratch/bin" "$scratch/peers" "$scratch/results"
printf '#!/bin/sh\necho "Test GPU"\n' >"$scratch/bin/nvidia-smi"
cat >"$scratch/bin/quern" <<'PROGRAM'
#!/bin/sh
[ "$1" = info ] && { echo "  version        0.1.0 (abc1234)"; exit; }
echo quern >>"$ORDER"
[ "$2" = attention ] && {
  echo '{"backend":"flash","D":64,"T":512,"causal":true,"fwd_tflops":300.0,"bwd_tflops":200.0}'; exit; }
echo '{"peer":"quern-0.1.0","step":{"ms":4.0,"launched_ms":5.0,"peak_mib":100,"tflops":300.0}}'
PROGRAM
cat >"$scratch/peers/torch_lm.py" <<'PROGRAM'
import os
open(os.environ["ORDER"], "a").write("torch\n")
count = open(os.environ["ORDER"]).read().count("torch")
print('{"peer":"torch-9","step":{"ms":%d.0,"peak_mib":200,"tflops":150.0}}' % (2 + 2 * count))
PROGRAM
echo 'print("""{"backend":"cudnn","D":64,"T":512,"causal":true,"fwd_tflops":250.0,"bwd_tflops":150.0}""")' \
  >"$scratch/peers/torch_attention.py"
chmod +x "$scratch"/bin/*
export ORDER=$scratch/order PATH=$scratch/bin:$PATH
compare() {
  "$root/benchmarks/compare_torch" --quern "$scratch/bin/quern" --peers "$scratch/peers" --rounds 3 \
    --record "$scratch/results/compare.json" "$@"
}

# PyTorch's rounds take 4, 6 and 8 ms: the median is 1.5 times Quern's 4 ms.
expect 'a step' 0 'small                6.0       4.0     1.5          5.0    300.0     100' compare small
holds 'both in turn' test "$(tr '\n' ' ' <"$ORDER")" = 'torch quern torch quern torch quern '
expect 'the record' 0 '"commit": "abc1234"' cat "$scratch/results/compare.json"
printf '<!-- results:compare -->\n<!-- /results:compare -->\n' >"$scratch/page"
"$root/scripts/readme_tables.py" --readme "$scratch/page" --results "$scratch/results"
expect 'the table' 0 '| small, batch 4, ctx 512, vocab 10000, bf16 | 6.00 (compile=graphs) | 4.00 | 1.50 |' \
  cat "$scratch/page"
expect 'attention' 0 '  64   True    512    300.0/200.0              -    250.0/150.0' compare attention
expect 'an unknown case' 2 "found case 'smal', expected some of small" compare smal
expect 'no rounds' 2 'rounds is 0' compare --rounds 0 small
echo 'import sys; sys.exit("no module named torch")' >"$scratch/peers/torch_lm.py"
expect 'a peer that fails' 1 '--compile graphs failed (1)' compare small
exit $((failures > 0))
