#!/usr/bin/env bash
# scripts/gpu_check sanitize distinguishes findings, failing tests, timeouts, silent tools and
# skipped tests. It names tests left out for time, and fails when a tool misses its planted bug.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

mkdir "$scratch/bin"
cat >"$scratch/bin/quern_gpu_tests" <<'PROGRAM'
#!/bin/sh
case "$*" in
  *list_tests*) printf 'GoodGpu.\n  One\n  Two\nModes/OtherGpu.\n  %s/bf16  # its parameter\n' "$CASE" ;;
esac
PROGRAM
cat >"$scratch/bin/compute-sanitizer" <<'PROGRAM'
#!/bin/sh
case "$*" in
  *PlantedBugs*) echo "========= ${SEEN-Invalid __global__ write}"; exit 9 ;;
  *Finds*) echo "========= Invalid __shared__ read"; exit 9 ;;
  *TakesLong*) exit 124 ;;
  *Sleeps*) sleep 60 ;; # longer than any limit below
  *FailsItself*) echo '[  FAILED  ] it'; echo '========= ERROR SUMMARY: 0 errors'; exit 1 ;;
  *FoundFirst*) echo '========= Uninitialized __global__ memory read'; exit 124 ;;
  *Skips*) echo '[  SKIPPED ] it'; echo '========= ERROR SUMMARY: 0 errors' ;;
  *SaysNothing*) echo '[       OK ] it' ;;
  *) echo '[       OK ] it'; echo '========= ERROR SUMMARY: 0 errors' ;;
esac
PROGRAM
chmod +x "$scratch"/bin/*
export PATH=$scratch/bin:$PATH
sanitize() { CASE=$1 "$root/scripts/gpu_check" "$scratch/bin" "sanitize:memcheck${2:-}"; }

expect 'nothing found' 0 'memcheck: of 3 tests 3 without a finding, 0 finding' sanitize Works
expect 'a finding' 1 'memcheck: Modes/OtherGpu.Finds/bf16: finding (9)' sanitize Finds
expect 'its report' 1 'Invalid __shared__ read' sanitize Finds
expect 'a finding of a test that did not end' 1 'Modes/OtherGpu.FoundFirst/bf16: finding (124)' sanitize FoundFirst
expect 'a test that takes too long' 0 'memcheck: not done: Modes/OtherGpu.TakesLong/bf16' sanitize TakesLong
# Long enough for the planted bug and the two other tests on a machine that stalls.
expect 'the time is up' 0 'memcheck: not done: Modes/OtherGpu.Sleeps/bf16' sanitize Sleeps :6
expect 'a test that fails' 0 'OtherGpu.FailsItself/bf16 failed without a finding' sanitize FailsItself
expect 'no summary' 1 'OtherGpu.SaysNothing/bf16: silent (0)' sanitize SaysNothing
expect 'a skipped test' 0 '2 without a finding, 0 finding, 0 silent, 0 failed, 1 skipped' sanitize Skips
expect 'no number of seconds' 2 "unknown part 'sanitize:memcheck:soon'" sanitize Works :soon
export SEEN='nothing'
expect 'the planted bug is missed' 1 'memcheck does not see DISABLED_PlantedBugs.Memcheck' sanitize Works

printf '#!/bin/sh\necho "quern: $*"\n' >"$scratch/bin/quern"
printf '#!/bin/sh\ncase "$*" in *2.7B*) exit 3 ;; esac\n' >"$scratch/bin/python3"
chmod +x "$scratch"/bin/*
decode() { "$root/scripts/gpu_check" "$scratch/bin" decode; }
shape='--size small --vocab 50304 --batch 1 --ctx 512 --precision bf16'
expect 'decoding' 1 "bench decode $shape --format json" decode
expect 'its peer' 1 "== peer decode small 50304: python3 benchmarks/peers/torch_decode.py $shape" decode
expect 'a peer that fails' 1 '!! peer decode 2.7B 50304 failed (exit 3)' decode
expect 'an unknown part' 2 "unknown part 'sanitise'" "$root/scripts/gpu_check" "$scratch/bin" sanitise
exit $((failures > 0))
