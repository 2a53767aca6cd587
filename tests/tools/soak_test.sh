#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2317  # programs in quotes; functions are called through expect
# scripts/soak passes with this build, and fails with programs that have a defect. They stand in a build folder of their
# own and run the real quern. Needs a built quern and fault shim: QUERN, or those of the preset that scripts/test builds.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=$(realpath -ms "${QUERN:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}")
build=${quern%/bin/quern}
shim=$build/tests/libquern_fault_shim.so
if [[ ! -x $quern || ! -e $shim ]]; then
  echo 'skip soak: no quern, or no fault shim'
  exit 0
fi
# A copy, because soak writes beside itself: hashes of losses, and the fuzzers' findings.
mkdir -p "$scratch/tree/scripts"
cp "$root/scripts/soak" "$scratch/tree/scripts"
soak() { "$scratch/tree/scripts/soak" "$@"; }

# plant NAME: a build folder with a quern that runs the commands on stdin before the real one.
plant() {
  mkdir -p "$scratch/$1/bin" "$scratch/$1/tests"
  ln -s "$shim" "$scratch/$1/tests"
  { printf '#!/usr/bin/env bash\nquern=%q scratch=%q\n' "$quern" "$scratch" && cat && echo 'exec "$quern" "$@"'; } \
    >"$scratch/$1/bin/quern"
  chmod +x "$scratch/$1/bin/quern"
}
# finds NAME REGEX: a line of the last log.
finds() { holds "$1" bash -c 'grep -qE -- "$1" "$2" || ! cut -c 1-200 "$2"' - "$2" "$scratch/log"; }

# The real program. The first run stores the hashes of its losses.
mkdir -p "$scratch/tree/tests/fixtures"
expect 'this build passes' 0 'ok losses: 100 steps in 7 modes; 0 hashes' \
  soak --build "$build" kills 5 faults 3 flips 30 steps 2000 losses 100
cp "$scratch/output" "$scratch/log"
finds 'kills' '^ok kills: 5 kills, [0-9]+ resumes, [0-9]+ before a run folder was there: all ended equal'
finds 'faults' '^ok faults: 24 faults: a clear error or none, and the same files after a second try'
finds 'flips' '^ok flips: 30 damaged files, each refused by name'
finds 'steps' '^ok steps: 2000 steps, [0-9]+ resumes; '
expect 'the losses are those of the first run' 0 '7 hashes equal' soak --build "$build" losses 100
expect 'an unknown check' 1 "unknown argument 'floods'" soak floods 3
expect 'a build folder without a program' 1 'FAIL flips: ' soak --build "$scratch/none" flips 1

# Kills: a resumed run that goes on in another way, and one without some of its losses.
plant other_bits <<<'[[ $* != *--resume*/killed ]] || set -- "$@" --lr 0.5'
expect 'a resumed run with other weights' 1 'FAIL kills: weights or moments of a killed and resumed run differ' \
  soak --build "$scratch/other_bits" kills 12
plant lost_losses <<<'[[ $* != */killed* ]] || set -- "$@" --log-every 2'
expect 'losses that are lost' 1 'FAIL kills: killed: metrics.jsonl holds 30 steps, expected each of 1 to 60 once' \
  soak --build "$scratch/lost_losses" kills 1
plant no_resume <<<'[[ $* != *--resume*/killed ]] || { echo "quern: planted" >&2 && exit 1; }'
expect 'a run that cannot be resumed' 1 'FAIL kills: after a kill: exit 1: quern: planted' \
  soak --build "$scratch/no_resume" kills 12

# Faults: each command has a defect of its own. Without QUERN_FAULT a library drops the fsyncs of folders, or all.
g++ -shared -fPIC -o "$scratch/nosync.so" -x c++ - <<'CODE'
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
extern "C" int fsync(int file) {
  struct stat status;
  const bool drops = getenv("PLANTED_ALL") || (fstat(file, &status) == 0 && S_ISDIR(status.st_mode));
  return drops ? 0 : reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"))(file);
}
CODE
plant faulty <<'PROGRAM'
out=${QUERN_FAULT_ROOT:-}/out
if [[ -z ${QUERN_FAULT:-} ]]; then
  case ${LD_PRELOAD:-},$* in
    ?*,tokenizer*) export PLANTED_ALL=1 LD_PRELOAD=$scratch/nosync.so:$LD_PRELOAD ;;
    ?*,report*) LD_PRELOAD=$scratch/nosync.so:$LD_PRELOAD ;;
    ,train\ --resume*) set -- "$@" --lr 0.5 ;;
  esac
  exec "$quern" "$@"
fi
shim=$LD_PRELOAD
unset LD_PRELOAD
case $* in
  tokenizer*) exit 1 ;;
  data*) kill -SEGV $$ ;;
  export*) exit 0 ;;
  import*) echo 'quern: planted' >&2 && exit 1 ;;
  report*) "$quern" "$@" && : >"$out/.page.tmp" && exit ;;
esac
LD_PRELOAD=$shim
export LD_PRELOAD
PROGRAM
expect 'defects under faults' 1 'FAIL faults: ' soak --build "$scratch/faulty" faults 12
cp "$scratch/output" "$scratch/log"
finds 'an error without a message' '^  tokenizer, call [0-9]+ .*: no message$'
finds 'a crash' '^  prepare, call [0-9]+ .*: exit -11: '
finds 'an error with exit status 0' '^  export, call [0-9]+ .*: exit 0, but missing \['
finds 'an interrupted call that is not made again' '^  import, call [0-9]+ .*, (4|short): is not tried again: quern: planted'
finds 'a file that is left' "^  report, call [0-9]+ .*: leaves \['\.page\.tmp'\]"
finds 'a kill that does not end it' '^  report, call [0-9]+ .*, kill-(before|after): exit 0: '
finds 'a resumed training with other weights' '^  train, call [0-9]+ .*: after a second try missing \[\].* different \[.*step_00000008'
finds 'a new training with other weights' '^  new, call [0-9]+ .*: after a second try missing \[\].* different \[.*step_0000000[24]'
finds 'a training from a model with other weights' '^  from, call [0-9]+ .*: after a second try missing \[\].* different \[.*step_0000000[24]'
finds 'a file that is not on the disk' '^  tokenizer, without a fault: .* is not synced before .* gets its name$'
finds 'a name that is not on the disk' '^  report, without a fault: /faults/out is not synced after its last new name$'
plant no_shim <<<'unset LD_PRELOAD'
expect 'faults that never come' 1 'FAIL faults: train: exit 0 without a fault, 0 calls' soak --build "$scratch/no_shim" faults 1

# Flips.
plant accepting <<<'[[ $1 != generate ]] || exit 0'
expect 'a damaged file that is accepted' 1 ', damage 0: exit 0: ' soak --build "$scratch/accepting" flips 1
plant mute <<<'[[ $1 != generate ]] || exec "$quern" "$@" 2>/dev/null'
expect 'a message without the name' 1 ', damage 0: exit 1: ' soak --build "$scratch/mute" flips 1
plant refusing <<<'[[ $1 != generate ]] || { cd "$2" && ls >&2 && exit 1; }'
expect 'an intact checkpoint that is refused' 1 'FAIL flips: quern generate ' soak --build "$scratch/refusing" flips 1

# Steps: a program that grows, without an end within the first seconds.
grown() {
  plant "$1" <<PROGRAM
[[ \$1 != train ]] || exec python3 -c 'import signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = []
for i in range(45): time.sleep(0.1), held.append($2)'
PROGRAM
  soak --build "$scratch/$1" steps 10 >"$scratch/$1/log" 2>&1 && echo 'exit status 0' >"$scratch/$1/log"
}
grown memory 'b"x" * (i << 20)' &
grown files 'open("/dev/null")' &
grown threads 'threading.Thread(target=time.sleep, args=(9,), daemon=True).start()' &
wait
for what in memory files threads; do
  holds "growing $what" grep -q "^FAIL steps: .*$what grew from [0-9]* to [0-9]*" "$scratch/$what/log"
done

# Losses: other ones, and the other checks still run.
plant other_losses <<<'[[ $* != */losses_muon* ]] || set -- "$@" --lr 0.5'
expect 'other losses' 1 'FAIL losses: muon: the losses of steps 1 to 100 are not those stored for ' \
  soak --build "$scratch/other_losses" losses 100 flips 1
cp "$scratch/output" "$scratch/log"
finds 'a check after a failed one' '^ok flips: 1 damaged files'

# Simulated ranks: the seeds are passed on, and a failed test is told.
plant simulated </dev/null
cat >"$scratch/simulated/bin/quern_tests" <<'PROGRAM'
#!/usr/bin/env bash
echo "seeds: $QUERN_SEEDS, 4 undisturbed trainings"
[[ -n ${PLANTED_FAILURE:-} ]] && echo 'seed 7: other weights' && exit 1
[[ -n ${PLANTED_NOTHING:-} ]] || echo '[  PASSED  ] 1 test.'
PROGRAM
chmod +x "$scratch/simulated/bin/quern_tests"
expect 'simulated ranks' 0 ', 4 undisturbed trainings' soak --build "$scratch/simulated" ranks 10
cp "$scratch/output" "$scratch/log"
finds 'their seeds' '^ok ranks: seeds ([0-9]+-[0-9]+): seeds: \1, '
expect 'a seed that fails' 1 'seed 7: other weights' \
  env PLANTED_FAILURE=1 "$scratch/tree/scripts/soak" --build "$scratch/simulated" ranks 10
expect 'a program without this test' 1 'FAIL ranks: seeds ' \
  env PLANTED_NOTHING=1 "$scratch/tree/scripts/soak" --build "$scratch/simulated" ranks 10

# Fuzzers: a finding is kept.
plant fuzzed </dev/null
cat >"$scratch/fuzzed/bin/quern_fuzz" <<'PROGRAM'
#!/bin/sh
echo 'json 12 inputs, 3 accepted, 100 per second'
mkdir "$4" && echo bytes >"$4/json"
exit "$(cat "$0.status")"
PROGRAM
chmod +x "$scratch/fuzzed/bin/quern_fuzz"
echo 0 >"$scratch/fuzzed/bin/quern_fuzz.status"
expect 'inputs without a finding' 0 'ok fuzz: 12 inputs, no finding' soak --build "$scratch/fuzzed" fuzz 1
echo 1 >"$scratch/fuzzed/bin/quern_fuzz.status"
expect 'a finding' 1 'FAIL fuzz: quern_fuzz ended with 1; the inputs are in ' soak --build "$scratch/fuzzed" fuzz 1
holds 'it is kept' grep -q bytes "$scratch/tree/build/findings/json"
printf '#!/bin/sh\n' >"$scratch/fuzzed/bin/quern_fuzz"
expect 'a fuzzer that does nothing' 1 'FAIL fuzz: quern_fuzz has parsed nothing' soak --build "$scratch/fuzzed" fuzz 1
exit $((failures > 0))
