#!/usr/bin/env bash
# The HTML pages in a headless Chromium: every tests/browser/test_*.py, with the program that scripts/test
# built (or QUERN_PROGRAM). Needs chromium and playwright from PyPI; skipped without.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

quern=${QUERN_PROGRAM:-$root/build/${QUERN_TEST_PRESET:-release}/bin/quern}
[[ -x $quern ]] || { echo "skip pages in a browser: $quern is not built" && exit; }
reason=$(PYTHONPATH=$root/tests/browser python3 -c 'import harness; print(harness.missing())')
[[ -z $reason ]] || { echo "skip pages in a browser: $reason" && exit; }
status=0
for file in "$root"/tests/browser/test_*.py; do
  python3 "$file" "$quern" || status=1
done
exit "$status"
