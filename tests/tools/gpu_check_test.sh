#!/usr/bin/env bash
# scripts/gpu_check sanitize: a finding, a test that takes too long, a silent tool and a skipped test
# are told apart, and a tool that misses its planted bug fails.
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
  *Skips*) echo '[  SKIPPED ] it'; echo '========= ERROR SUMMARY: 0 errors' ;;
  *SaysNothing*) echo '[       OK ] it' ;;
  *) echo '[       OK ] it'; echo '========= ERROR SUMMARY: 0 errors' ;;
esac
PROGRAM
chmod +x "$scratch"/bin/*
export PATH=$scratch/bin:$PATH
sanitize() { CASE=$1 "$root/scripts/gpu_check" "$scratch/bin" sanitize:memcheck; }

expect 'nothing found' 0 'memcheck: 3 of 3 tests without a finding, 0 skipped' sanitize Works
expect 'a finding' 1 'memcheck: Modes/OtherGpu.Finds/bf16 failed (9)' sanitize Finds
expect 'its report' 1 'Invalid __shared__ read' sanitize Finds
expect 'a test that takes too long' 1 'OtherGpu.TakesLong/bf16 was not done after' sanitize TakesLong
expect 'no summary' 1 'OtherGpu.SaysNothing/bf16 failed (8)' sanitize SaysNothing
expect 'a skipped test' 0 '2 of 3 tests without a finding, 1 skipped' sanitize Skips
export SEEN='nothing'
expect 'the planted bug is missed' 1 'memcheck does not see DISABLED_PlantedBugs.Memcheck' sanitize Works
expect 'an unknown part' 2 "unknown part 'sanitise'" "$root/scripts/gpu_check" "$scratch/bin" sanitise
exit $((failures > 0))
