"""Prints "passed failed skipped" of a GoogleTest JSON report.

Usage: count_gtest.py REPORT EXIT_STATUS
A missing or broken report is one failed test (the program crashed), and so is an exit status that
no failed test explains.
"""

import json
import sys


def main():
    path, status = sys.argv[1], int(sys.argv[2])
    passed = failed = skipped = 0
    try:
        with open(path, encoding="utf-8") as file:
            suites = json.load(file)["testsuites"]
    except (OSError, ValueError, KeyError):
        print(0, 1, 0)
        return
    for suite in suites:
        for test in suite["testsuite"]:
            if test.get("failures"):
                failed += 1
            elif test.get("result") == "COMPLETED":
                passed += 1
            elif test.get("result") == "SKIPPED":
                skipped += 1
    if passed + failed + skipped == 0 or (status != 0 and failed == 0):
        failed += 1
    print(passed, failed, skipped)


main()
