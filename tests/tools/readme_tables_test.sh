#!/usr/bin/env bash
# A program's output becomes a result file, and result files become the tables of README.md and benchmarks/RESULTS.md.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

record() { "$root/scripts/record_result.py" --machine tester --folder "$scratch/results" "$@"; }
# shellcheck disable=SC2120
tables() { "$root/scripts/readme_tables.py" --page "$scratch/page" --results "$scratch/results" "$@"; }
page() { printf 'before\n<!-- %s -->\nold\n<!-- /%s -->\nafter\n' "$1" "$1" >"$scratch/page"; }
mkdir "$scratch/results"

cat >"$scratch/train.log" <<'LOG'
== shakespeare: bin/quern train --config configs/shakespeare-cpu.toml --out /tmp/x
[model]     size="shakespeare-cpu", vocab=257
[data]      train="data/tinyshakespeare.txt"
step 1000/2000  loss 1.9000  norm 0.900  lr 1.00e-03  12.8k tok/s  ETA 0s
step 1000/2000  validation loss 1.8011  best so far  1742 windows in 2.0 s
step 2000/2000  validation loss 1.6999  best so far  1742 windows in 2.0 s
done:       2000 steps, 1m45s of training, 40 MiB of memory at most
LOG
cat >"$scratch/verify.log" <<'LOG'
$ quern verify golden/mha
golden/mha: cpu, fp32, attention flash, kernels fused
  logits                                                           5.2e-07   2.0e-05
  loss                                                             0.0e+00   1.0e-05
  gradient of model.layers.1.self_attn.k_proj.weight               9.5e-05   2.0e-05  BEYOND
  losses while training                                            6.0e-07   1.0e-05
  gradient norms                                                   5.0e-07   1.0e-04
  final lm_head.weight                                             3.7e-06   1.0e-04
  FAILED: 1 of 46 beyond tolerance
LOG

# One command of two rows, the second of which did not fit; the peer in two modes.
cat >"$scratch/decode.log" <<'LOG'
== decode small: bin/quern bench decode --size small --vocab 10000,50304 --format json
{"peer":"quern-0.1.0","size":"small","precision":"bf16","way":"automatic","vocab_size":10000,"batch":1,"prompt":128,"ms":0.2000,"tokens_per_second":5000.0,"times_read":3.41}
{"peer":"quern-0.1.0","size":"small","precision":"bf16","way":"automatic","vocab_size":50304,"batch":1,"prompt":128,"error":"OOM"}
== peer decode small: python3 benchmarks/peers/torch_decode.py --size small
mode max-autotune failed, trying the next: no compiler
{"peer": "torch-9", "size": "small", "precision": "bf16", "way": "reduce-overhead", "vocab_size": 10000, "batch": 1, "prompt": 128, "ms": 0.5, "tokens_per_second": 2000.0}
== peer decode small: python3 benchmarks/peers/torch_decode.py --size small --mode eager
{"peer": "torch-9", "size": "small", "precision": "bf16", "way": "eager", "vocab_size": 10000, "batch": 1, "prompt": 128, "ms": 4.0, "tokens_per_second": 250.0}
== decode text: bin/quern bench decode --size toy
    size  precision  way
LOG

# Two seeds of the GPU's preset, 1.46 and 1.45.
for seed in 1 2; do
  cat >"$scratch/seed-$seed.log" <<LOG
== shakespeare bf16 $seed: bin/quern train --config configs/shakespeare-gpu.toml --seed $seed --out /tmp/x
[model]     size="shakespeare-gpu", vocab=257
[compute]   precision="bf16"
[train]     steps=2500, seed=$seed, dropout=0.2
step 2000/2500  validation loss 1.4$((7 - seed))00  best so far  435 windows in 0.1 s
done:       2500 steps, 12s of training, 1145 MiB of memory at most
LOG
done

printf 'text\n' >"$scratch/empty.log"
expect 'a log without results' 1 '' record "$scratch/empty.log"
printf '%s\n' '== kernels: bin/quern bench kernels --json' '{"peer":"quern-0.1.0","kernel":"copy","ms":1.0}' \
  >"$scratch/kernels.log"
expect 'the JSON of another benchmark' 1 '' record "$scratch/kernels.log"
cat >"$scratch/step.log" <<'LOG'
== step: bin/quern bench step --size toy --json
{"peer":"quern-0.1.0","size":"toy","params":100,"batch":4,"ctx":8,"vocab":50,"attn":"flash","dtype":"fp32","kernels":"fused","compile":"none","step":{"ms":1.25,"peak_mib":9,"tok_s":320,"tflops":0.1}}
LOG
expect 'a training run' 0 'train-tester-shakespeare-cpu-fp32' record "$scratch/train.log"
expect 'a verification' 0 'verify-tester' record "$scratch/verify.log"
expect 'decoding' 0 'decode-tester-quern-small-bf16-automatic-vocab-10000-50304-batch-1-prompt-128.json' \
  record "$scratch/decode.log"
holds 'one record per command, none from other text' test "$(grep -c . "$scratch/output")" = 3

page results:train
expect 'a page out of date is reported' 1 'out of date' tables --check
expect 'the table is made' 0 '' tables
holds 'it has the run' grep -q '1.6999 (step 2000) | 1.6999 | final <= 1.72 .* | 105 s | 40 MiB' "$scratch/page"
holds 'the text around it stays' grep -qx after "$scratch/page"
expect 'a page up to date' 0 '' tables --check

expect 'another seed is another record' 0 'train-tester-shakespeare-gpu-bf16-fused-seed-2.json' \
  record "$scratch/seed-1.log" "$scratch/seed-2.log"
page results:summary
tables
holds 'the mean of the seeds' grep -qF 'mean of 2 seeds | 1.4550 | 1.4697 (nanoGPT, published)' "$scratch/page"

page results:verify
tables
holds 'a failure shows' grep -q '9.5e-05 / 2.0e-05 .* | 0 of 1 |' "$scratch/page"
page results:decode
tables
holds 'beside the fastest mode' \
  grep -qF '| small | 10000 | 1 | 128 | bf16 | 0.200 | 5000 | 3.41 | 0.500 (reduce-overhead) | 2.50 |' "$scratch/page"
holds 'what did not fit' grep -qF '| small | 50304 | 1 | 128 | bf16 | out of memory | - | - | - | - |' "$scratch/page"
holds 'its command' grep -qF -- '- `python3 torch_decode.py --size small --mode eager` (tester' "$scratch/page"
page results:bench
tables
holds 'no result is said' grep -qx 'No result is recorded yet.' "$scratch/page"
expect 'a step' 0 'bench-tester-quern-0.1.0-toy-fp32-flash-fused.json' record "$scratch/step.log"
tables
holds 'its row' grep -qF 'toy batch 4 ctx 8 | fp32 flash fused | step | 1.250 | 9 | 320 | 0.1 |' "$scratch/page"
page results:unknown
expect 'an unknown table' 1 'expected one of' tables
printf '$ quern\nhello\n' >"$scratch/results/sample.txt"
page output:sample
tables
holds 'an output is shown' grep -qx hello "$scratch/page"
expect 'README.md and benchmarks/RESULTS.md are up to date' 0 '' "$root/scripts/readme_tables.py" --check
exit $((failures > 0))
