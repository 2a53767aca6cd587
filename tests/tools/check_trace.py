#!/usr/bin/env python3
"""Checks a trace.json against Chrome's trace event format, as strictly as a viewer could.

Usage: check_trace.py TRACE.json

- Every event has a phase, a process and a thread; every complete event (X) a name, ts >= 0 and dur >= 0.
- The slices of one thread nest: none ends after the one it begins in.
- Every flow has one start (s) and one finish (f, bound to the enclosing slice), both inside slices of their threads, the
  finish not before the start.
- Every process and thread with events has a name, and no two threads share a number.
- Counters have numbers, and times that rise.

Prints one line per violation, at most 20, then the counts; fails when there is one.
"""
import collections
import json
import sys
from decimal import Decimal


class Checker:
    def __init__(self, trace):
        self.trace = trace
        self.violations = []
        self.slices = collections.defaultdict(list)
        self.flows = collections.defaultdict(lambda: {"s": [], "f": []})
        self.counters = collections.defaultdict(list)
        self.names = {"process_name": {}, "thread_name": {}}
        self.used = set()
        self.counts = collections.Counter()

    def report(self, text):
        self.violations.append(text)

    def number(self, event, key):
        """Times are decimals: as doubles, sums would not be exact."""
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            self.report(f"{key} is {value!r}, expected a number: {event}")
            return Decimal(0)
        if value < 0:
            self.report(f"{key} is {value}, expected at least 0: {event}")
        return Decimal(value)

    def read(self, event):
        phase = event.get("ph")
        self.counts[phase] += 1
        readers = {"X": self.read_slice, "s": self.read_flow, "f": self.read_flow, "C": self.read_counter,
                   "M": self.read_metadata}
        if phase not in readers:
            return self.report(f"phase {phase!r}, expected one of {', '.join(readers)}")
        if not isinstance(event.get("name"), str) or not event["name"]:
            self.report(f"no name: {event}")
        if not isinstance(event.get("pid"), int):
            self.report(f"pid is {event.get('pid')!r}, expected an integer")
        return readers[phase](event)

    def thread(self, event):
        if not isinstance(event.get("tid"), int):
            self.report(f"tid is {event.get('tid')!r}, expected an integer: {event}")
        key = event.get("pid"), event.get("tid")
        self.used.add(key)
        return key

    def read_slice(self, event):
        begin, length = self.number(event, "ts"), self.number(event, "dur")
        if not isinstance(event.get("args", {}), dict):
            self.report(f"args are no object: {event}")
        self.slices[self.thread(event)].append((begin, begin + length, event["name"]))

    def read_flow(self, event):
        if event["ph"] == "f" and event.get("bp") != "e":
            self.report(f"a flow's finish without bp: e: {event}")
        self.flows[event.get("cat"), event.get("name"), event.get("id")][event["ph"]].append(
            (self.thread(event), self.number(event, "ts")))

    def read_counter(self, event):
        values = event.get("args")
        if not values or not all(isinstance(v, (int, Decimal)) for v in values.values()):
            self.report(f"a counter's args are {values!r}, expected numbers")
        self.counters[event["pid"], event["name"]].append(self.number(event, "ts"))

    def read_metadata(self, event):
        if event["name"] in self.names:
            key = event["pid"] if event["name"] == "process_name" else self.thread(event)
            if key in self.names[event["name"]]:
                self.report(f"{key} is named twice")
            self.names[event["name"]][key] = event.get("args", {}).get("name")

    def check_nesting(self):
        for thread, slices in self.slices.items():
            slices.sort(key=lambda s: (s[0], -s[1]))
            open_slices = []
            for begin, end, name in slices:
                while open_slices and open_slices[-1][0] <= begin:
                    open_slices.pop()
                if open_slices and end > open_slices[-1][0]:
                    self.report(f"{thread}: {name} ends at {end}, after {open_slices[-1][1]} at {open_slices[-1][0]}")
                open_slices.append((end, name))

    def check_flows(self):
        for key, ends in self.flows.items():
            if len(ends["s"]) != 1 or len(ends["f"]) != 1:
                self.report(f"flow {key}: {len(ends['s'])} starts and {len(ends['f'])} finishes, expected one of each")
                continue
            if ends["f"][0][1] < ends["s"][0][1]:
                self.report(f"flow {key}: finishes before it starts")
            for thread, time in ends["s"] + ends["f"]:
                self.check_inside(key, thread, time)

    def check_inside(self, key, thread, time):
        # The last slice to begin before `time` or the ones around it: searched from the left, since lists are sorted.
        if not any(begin <= time < end for begin, end, _ in self.candidates(thread, time)):
            self.report(f"flow {key}: no slice of {thread} at {time}")

    def candidates(self, thread, time):
        slices = self.slices.get(thread, [])
        low, high = 0, len(slices)
        while low < high:
            middle = (low + high) // 2
            if slices[middle][0] <= time:
                low = middle + 1
            else:
                high = middle
        return reversed(slices[:low])

    def check_names(self):
        for pid, tid in self.used:
            if not self.names["process_name"].get(pid):
                self.report(f"process {pid} has no name")
            if not self.names["thread_name"].get((pid, tid)):
                self.report(f"thread {tid} of process {pid} has no name")
        numbers = [tid for _, tid in self.used]
        if len(numbers) != len(set(numbers)):
            self.report("two threads of different processes share a number")

    def check_counters(self):
        for key, times in self.counters.items():
            if any(b <= a for a, b in zip(times, times[1:])):
                self.report(f"counter {key}: times do not rise")

    def run(self):
        events = self.trace.get("traceEvents") if isinstance(self.trace, dict) else None
        if not isinstance(events, list):
            self.report("no list traceEvents")
            return
        for event in events:
            self.read(event)
        self.check_nesting()
        self.check_flows()
        self.check_names()
        self.check_counters()


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            checker = Checker(json.load(file, parse_float=Decimal))
    except (OSError, ValueError) as error:
        print(f"check_trace.py: {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    checker.run()
    for line in checker.violations[:20]:
        print(line)
    counts = checker.counts
    print(f"{counts['X']} slices, {counts['s']} flows, {counts['C']} counter points, "
          f"{len(checker.used)} threads: {len(checker.violations)} violations")
    return 1 if checker.violations else 0


sys.exit(main())
