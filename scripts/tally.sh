# Counts test results; sourced by scripts/test and .ci/run after lib.sh.
# shellcheck shell=bash

passed=0 failed=0 skipped=0
failures=()

# tally NAME PASSED FAILED SKIPPED
tally() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  (($3 == 0)) || failures+=("$1")
}

# check NAME COMMAND...: one test, which passes when the command does.
check() {
  local name=$1
  shift
  say "$name"
  if "$@"; then tally "$name" 1 0 0; else tally "$name" 0 1 0; fi
}

# gtest_progress NAME [LINES]: filters a GoogleTest program's output: a line per tenth of its tests, or LINES in all,
# the output of tests that fail, skip or do not end, and all output outside of tests.
gtest_progress() {
  local line_by_line=() # mawk otherwise waits for a full block of input
  [[ $(awk -W version 2>&1 </dev/null) != mawk* ]] || line_by_line=(-W interactive)
  awk "${line_by_line[@]}" -v name="$1" -v lines="${2:-10}" '
    /^\[=+\] Running/ { total = $3; start = systime() }
    /^\[ RUN / { inside = 1; kept = "" }
    inside { kept = kept $0 "\n" }
    !inside && NF && !/^\[-+\]/ { print }
    inside && /\[ +(OK|FAILED|SKIPPED) +\]/ {
      if (!/\[ +OK \]/) printf "%s", kept
      inside = 0
      if (total && int(lines * ++done / total) > int(lines * (done - 1) / total)) {
        printf "%s: %d of %d tests, %d s\n", name, done, total, systime() - start
      }
      fflush()
    }
    END { if (inside) printf "%s", kept }'
}

# run_gtest NAME PROGRAM [ARGUMENT...]: all tests of a GoogleTest program. One that ends without its
# report, or with a failure that no test explains, counts as a failed test.
run_gtest() { run_gtest_shards 1 "$@"; }

# run_gtest_shards COUNT NAME PROGRAM [ARGUMENT...]: the same, COUNT processes at a time. Each takes an
# eighth of its share of the tests, so that none waits long for a slow one, and 25 minutes at most, a test ten.
run_gtest_shards() {
  local most=$(($1 < 64 ? $1 : 64)) name=$2 label folder shard shards status counts processes=()
  shift 2
  folder=$(mktemp -d)
  say "$name"
  shards=$((most == 1 ? 1 : most < 8 ? 8 * most : 64))
  for ((shard = 0; shard < shards; ++shard)); do
    label=$name
    ((shards == 1)) || label="$name, part $((shard + 1)) of $shards"
    while (($(jobs -pr | wc -l) >= most)); do wait -n || true; done
    (
      set -o pipefail
      export QUERN_TEST_SECONDS=600
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 1500 "$@" --gtest_color=no \
        "--gtest_output=json:$folder/$shard.json" 2>&1 | gtest_progress "$label" $((shards == 1 ? 10 : 1))
    ) &
    processes+=($!)
  done
  for ((shard = 0; shard < shards; ++shard)); do
    status=0
    wait "${processes[shard]}" || status=$?
    counts=$(python3 "$QUERN_ROOT/scripts/count_gtest.py" "$folder/$shard.json" "$status")
    # shellcheck disable=SC2086
    tally "$name" $counts
  done
  rm -rf "$folder"
}

# run_tool_tests COUNT FILE...: scripts, COUNT at a time, that print a line "ok NAME", "FAIL NAME" or "skip NAME" for
# each test.
run_tool_tests() {
  local most=$1 file name folder status good bad none
  shift
  folder=$(mktemp -d)
  for file; do
    name=$(basename "$file")
    while (($(jobs -pr | wc -l) >= most)); do wait -n || true; done
    say "$name"
    (
      status=0
      "$file" >"$folder/$name" 2>&1 || status=$?
      echo "$status" >"$folder/$name.status"
    ) &
  done
  wait
  for file; do
    name=$(basename "$file")
    say "$name: results"
    cat "$folder/$name"
    status=$(<"$folder/$name.status")
    good=$(grep -c '^ok ' "$folder/$name" || true)
    bad=$(grep -c '^FAIL ' "$folder/$name" || true)
    none=$(grep -c '^skip ' "$folder/$name" || true)
    ((status == 0 || bad > 0)) || bad=1
    ((good + bad + none > 0)) || bad=1
    tally "$name" "$good" "$bad" "$none"
  done
  rm -rf "$folder"
}

# Prints the sum as the last line; fails when a test did.
finish_tally() {
  local name
  for name in "${failures[@]}"; do printf 'failed: %s\n' "$name"; done
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0))
}
