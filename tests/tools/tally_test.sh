#!/usr/bin/env bash
# Test results are counted correctly: a crash and a missing report are failures.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

count() { python3 "$root/scripts/count_gtest.py" "$scratch/report.json" "$1"; }
test_case() { printf '{"name": "a", "result": "%s"%s}' "$1" "${2:-}"; }
report() { printf '{"testsuites": [{"testsuite": [%s]}]}' "$1" >"$scratch/report.json"; }
failure=', "failures": [{"failure": "x"}]'

report "$(test_case COMPLETED), $(test_case SKIPPED), $(test_case COMPLETED "$failure")"
expect 'passed, failed and skipped' 0 '1 1 1' count 1
report "$(test_case COMPLETED)"
expect 'a program that fails after its tests' 0 '1 1 0' count 1
report ''
expect 'a program without tests' 0 '0 1 0' count 0
echo '{"testsuites": [' >"$scratch/report.json"
expect 'a report cut short' 0 '0 1 0' count 139
rm "$scratch/report.json"
expect 'no report' 0 '0 1 0' count 139

# run_sum COMMAND: the last line of a tally that ran it.
run_sum() {
  # shellcheck disable=SC2016
  bash -c 'source "$1/scripts/lib.sh"; source "$1/scripts/tally.sh"; eval "$2"; finish_tally' \
    tally "$root" "$1"
}
expect 'a check that passes' 0 '1 passed, 0 failed, 0 skipped' run_sum 'check a true'
expect 'a check that fails' 1 '0 passed, 1 failed, 0 skipped' run_sum 'check a false'
printf '#!/bin/sh\nkill -SEGV $$\n' >"$scratch/crash"
printf '#!/bin/sh\necho ok one; echo skip two; echo FAIL three; exit 1\n' >"$scratch/tool"
chmod +x "$scratch/crash" "$scratch/tool"
expect 'a program that crashes' 1 '0 passed, 1 failed, 0 skipped' run_sum "run_gtest a $scratch/crash"
cat >"$scratch/shard" <<'PROGRAM'
#!/bin/sh
for argument; do case $argument in --gtest_output=json:*) report=${argument#--gtest_output=json:} ;; esac; done
[ "$GTEST_SHARD_INDEX" = "$CRASH" ] && kill -SEGV $$
echo "{\"testsuites\": [{\"testsuite\": [{\"result\": \"COMPLETED\"}]}]}" >"$report"
PROGRAM
chmod +x "$scratch/shard"
expect 'three processes' 0 '24 passed, 0 failed, 0 skipped' run_sum "run_gtest_shards 3 a $scratch/shard"
CRASH=1 expect 'one part crashes' 1 '23 passed, 1 failed, 0 skipped' run_sum \
  "run_gtest_shards 3 a $scratch/shard"
cat >"$scratch/progress" <<'PROGRAM'
#!/bin/sh
for argument; do case $argument in --gtest_output=json:*) report=${argument#--gtest_output=json:} ;; esac; done
echo '[==========] Running 20 tests from 1 test suite.'
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
  printf '[ RUN      ] Suite.Passes%s\nquiet\n[       OK ] Suite.Passes%s (0 ms)\n' $n $n
done
echo '[ RUN      ] Suite.Last'
[ "$LAST" = crashes ] && echo 'about to crash' && kill -SEGV $$
printf 'why it fails\n[  FAILED  ] Suite.Last (0 ms)\n[==========] 20 tests from 1 test suite ran.\n'
echo "{\"testsuites\": [{\"testsuite\": [{\"failures\": [{}]}]}]}" >"$report"
exit 1
PROGRAM
chmod +x "$scratch/progress"
expect 'progress: a line per tenth' 1 'a: 10 of 20 tests' run_sum "run_gtest a $scratch/progress"
cp "$scratch/output" "$scratch/log"
holds 'progress: ten lines' test "$(grep -c ' of 20 tests' "$scratch/log")" = 10
holds 'progress: the output of a failed test' grep -q '^why it fails$' "$scratch/log"
holds 'progress: no output of tests that pass' bash -c '! grep -q quiet "$1"' - "$scratch/log"
LAST=crashes expect 'progress: a test that does not end' 1 'about to crash' run_sum "run_gtest a $scratch/progress"
expect 'a script that crashes' 1 '0 passed, 1 failed, 0 skipped' run_sum "run_tool_tests 2 $scratch/crash"
expect 'a script of three tests' 1 '1 passed, 1 failed, 1 skipped' run_sum "run_tool_tests 2 $scratch/tool"
expect 'two scripts at a time' 1 '1 passed, 2 failed, 1 skipped' run_sum \
  "run_tool_tests 2 $scratch/tool $scratch/crash"
exit $((failures > 0))
