#!/usr/bin/env bash
# benchmarks/compare_torch runs both programs in turn, compares medians, adds to its record case by
# case, and the record becomes tables.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir "$scratch/bin" "$scratch/peers" "$scratch/results"
printf '#!/bin/sh\necho "Test GPU"\n' >"$scratch/bin/nvidia-smi"
cat >"$scratch/bin/quern" <<'PROGRAM'
#!/bin/sh
[ "$1" = info ] && { echo "  version        0.1.0 (${COMMIT:-abc1234})"; exit; }
echo quern >>"$ORDER"
case "$*" in
  *attention*course*--dims*)
    echo '{"backend":"flash","dtype":"bf16","D":64,"T":256,"saved_mib":0.6,"peak_mib":1.1,"fwd_ms":0.5,"bwd_ms":1.0}'
    echo '{"backend":"naive","dtype":"bf16","D":64,"T":256,"error":"OOM"}' ;;
  *attention*course*)
    echo '{"backend":"flash","dtype":"bf16","D":64,"T":16384,"causal":false,"fwd_tflops":400.0,"bwd_tflops":300.0}'
    echo '{"backend":"flash","dtype":"fp32","D":64,"T":16384,"causal":false,"fwd_tflops":40.0,"bwd_tflops":30.0}' ;;
  *attention*--deterministic*false*)
    echo '{"backend":"flash","dtype":"bf16","D":64,"T":512,"causal":true,"fwd_tflops":301.0,"bwd_tflops":250.0}' ;;
  *attention*) echo '{"backend":"flash","dtype":"bf16","D":64,"T":512,"causal":true,"fwd_tflops":300.0,"bwd_tflops":200.0}' ;;
  *kernels*)
    echo '{"kernel":"copy","variant":"memcpy","ms":1.0,"tb_s":4.0}'
    echo '{"kernel":"softmax","variant":"naive","ms":8.0,"tb_s":0.5,"shape":[16,32],"dtype":"float32"}'
    echo '{"kernel":"softmax","variant":"fused","ms":1.0,"tb_s":3.6,"shape":[16,32],"dtype":"float32"}'
    echo '{"kernel":"adamw","variant":"fused","ms":2.0,"tb_s":3.8,"params":9,"dtype":"float32"}' ;;
  *) echo '{"peer":"quern-0.1.0","step":{"ms":4.0,"launched_ms":5.0,"peak_mib":100,"tflops":300.0}}' ;;
esac
PROGRAM
cat >"$scratch/peers/torch_lm.py" <<'PROGRAM'
import os
open(os.environ["ORDER"], "a").write("torch\n")
count = open(os.environ["ORDER"]).read().count("torch")
print('{"peer":"torch-9","step":{"ms":%d.0,"peak_mib":200,"tflops":150.0}}' % (2 + 2 * count))
PROGRAM
cat >"$scratch/peers/torch_attention.py" <<'PROGRAM'
import sys
backend, dtype, T, causal = "cudnn", "bf16", 512, "true"
if "seed" in sys.argv:
    backend, dtype, T, causal = sys.argv[sys.argv.index("--backends") + 1], sys.argv[-1], 16384, "false"
print('{"backend":"%s","dtype":"%s","D":64,"T":%d,"causal":%s,"fwd_tflops":250.0,"bwd_tflops":150.0}' % (backend, dtype, T, causal))
PROGRAM
cat >"$scratch/peers/torch_kernels.py" <<'PROGRAM'
print('{"kernel":"copy","variant":"memcpy","ms":1.0,"tb_s":4.0}')
print('{"kernel":"softmax","variant":"manual","ms":9.0,"tb_s":0.4,"shape":[16,32],"dtype":"float32"}')
print('{"kernel":"softmax","variant":"compile","ms":1.5,"tb_s":2.4,"shape":[16,32],"dtype":"float32"}')
print('{"kernel":"adamw","variant":"fused","ms":3.0,"tb_s":2.0,"params":9,"dtype":"float32"}')
PROGRAM
chmod +x "$scratch"/bin/*
export ORDER=$scratch/order PATH=$scratch/bin:$PATH
compare() {
  "$root/benchmarks/compare_torch" --quern "$scratch/bin/quern" --peers "$scratch/peers" --rounds 3 \
    --record "$scratch/results/compare.json" "$@"
}
table() { # table KIND TEXT: the table has the text
  printf '<!-- results:%s -->\n<!-- /results:%s -->\n' "$1" "$1" >"$scratch/page"
  "$root/scripts/readme_tables.py" --page "$scratch/page" --results "$scratch/results"
  expect "the table $1" 0 "$2" cat "$scratch/page"
}

# PyTorch's rounds take 4, 6 and 8 ms: the median is 1.5 times Quern's 4 ms.
expect 'a step' 0 'small                6.0       4.0     1.5          5.0    300.0     100' compare small
holds 'both in turn' test "$(tr '\n' ' ' <"$ORDER")" = 'torch quern torch quern torch quern '
expect 'the record' 0 '"commit": "abc1234"' cat "$scratch/results/compare.json"
table compare '| small, batch 4, ctx 512, vocab 10000, bf16 | 6.00 (compile=graphs) | 4.00 | 1.50 |'

: >"$ORDER"
COMMIT=def5678 expect 'a published figure' 0 '0.649 times that' compare 0.5B
holds 'without PyTorch' test "$(tr '\n' ' ' <"$ORDER")" = 'quern quern quern '
table compare '| 0.5B, batch 16, ctx 1024, bf16 | - | 4.00 | - | 5.00 | 300 | 100 / - | LLMQ: 462 TFLOP/s, 110.0 ms (0.65'
expect 'the case recorded before stays' 0 '--rounds 3 small` (Test GPU' cat "$scratch/page"
expect 'each with its commit' 0 'commit def5678' cat "$scratch/page"

expect 'attention' 0 'bf16    64   True    512    300.0/200.0              -    250.0/150.0' compare attention
table attention '| 64 | yes | 512 | 300 / 200 | 301 / 250 | - | - | 250 / 150 |'
expect 'the course grid' 0 'fp32    64  False  16384      40.0/30.0              -              -    250.0/150.0' \
  compare attention-course
table attention-course '| bf16 | 64 | 16384 | 400 / 300 | 250 / 150 | FlashAttention-2 |'
expect 'memory' 0 'naive        bf16     256        OOM' compare attention-memory
table attention-memory '| bf16 | 256 | 0.6 MiB, 1 MiB, 0.50 + 1.00 ms | out of memory | - |'
expect 'kernels' 0 'softmax                float32         1.0    0.9       8.0         1.5     1.5' compare kernels
table kernels '| softmax | float32 | 16 x 32 | 1.000 | 90 % | 8.000 ms, 12 % | 1.500 ms, 60 % (compile) | 1.50 |'

# Quern takes 4 ms; PyTorch's modes in turn 4 and 6, 8 and 10, 12 and 14 ms, then 16 and 18, and so on.
: >"$ORDER"
expect 'a step on the CPU' 0 'cpu-small             3       8.0      10.0       4.0     2.0' compare --threads 3 --machine 'Test GPU' cpu-small
holds 'all in turn' test "$(tr '\n' ' ' <"$ORDER")" = 'quern torch torch quern torch torch quern torch torch '
table compare-cpu '| shakespeare-cpu, batch 12, ctx 64, vocab 257, fp32 | 3 | 8.00 | 10.00 | 4.00 | 2.00 |'
expect 'its command' 0 'compare_torch --rounds 3 --threads 3 cpu-small` (Test GPU' cat "$scratch/page"
expect 'one in BF16' 0 'cpu-wide-bf16         2      20.0      22.0       4.0     5.0' compare --threads 2 --machine 'Test GPU' cpu-wide-bf16
table compare-cpu '| shakespeare-gpu, batch 8, ctx 256, vocab 8000, bf16 | 2 | 20.00 | 22.00 | 4.00 | 5.00 |'

expect 'another machine' 1 "is a record of 'Test GPU', this is 'Other'" compare --machine Other small
expect 'an unknown case' 2 "found case 'smal', expected some of small" compare smal
expect 'no rounds' 2 'rounds is 0' compare --rounds 0 small
echo 'import sys; sys.exit("no module named torch")' >"$scratch/peers/torch_lm.py"
expect 'a peer that fails' 1 '--compile graphs failed (1)' compare small
exit $((failures > 0))
