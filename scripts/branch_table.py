#!/usr/bin/env python3
"""Branch coverage by folder, from the .gcno and .gcda files of a program compiled with g++ --coverage -O0.

Usage: scripts/branch_table.py [--least PERCENT] [--excuses FILE] [--skip NAME]... BUILD FOLDER...

Reads every .gcno below the folder BUILD by gcov-dump and prints, for each source FOLDER, its lines and branches
and the percentage taken, then each branch not taken as FILE:LINE: source text. Fails when a FOLDER is below
PERCENT (95), has no branch at all, or has a branch not taken without a reason in the excuses.

Counted: every way out of a block of code that has two or more. Not counted, for they are no decisions in the source:
- the way out by an exception, which every call has;
- blocks that only an exception reaches and that stand on a line of other code: destructors, but not handlers;
- lines of closing brackets alone, where destructors choose their way on, the guard of a static variable, and the
  choice of a handler by the exception's type.
Template instantiations count as one function: a branch is taken when one of them takes it.

A line of the excuses is `FILE | source text | reason`; empty lines and those that begin with # do not count. It
explains the branches not taken on the lines of FILE that contain the text, but does not raise the percentage. An
excuse that explains nothing is an error. --skip leaves out a source file, by its path.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys

FAKE, ON_TREE, FALL = 2, 1, 4
NO_DECISION = re.compile(r"^[\s})\];,]*(//.*)?$|^\s*static\s|^\s*}?\s*catch\b")


class Function:
    """The blocks and arcs of one function of one object file."""

    def __init__(self):
        self.arcs = collections.defaultdict(list)  # block: [[destination, flags, count]]
        self.lines = collections.defaultdict(list)  # block: [(file, line)]

    def count(self, counters):
        """Counts the arcs: those off the spanning tree from the counters, the others by what enters and leaves."""
        arcs = [(block, arc) for block, out in self.arcs.items() for arc in out]
        counters = iter(counters)
        ends = collections.defaultdict(lambda: ([], []))  # block: arcs in, arcs out
        for block, arc in arcs:
            if not arc[1] & ON_TREE:
                arc[2] = next(counters, 0)
            ends[block][1].append(arc)
            ends[arc[0]][0].append(arc)
        inner = [end for block, end in ends.items() if block > 1]
        while any(arc[2] is None for _, arc in arcs):
            for sides in inner:
                unknown = [(side, arc) for side in (0, 1) for arc in sides[side] if arc[2] is None]
                if len(unknown) == 1:
                    side, arc = unknown[0]
                    arc[2] = sum(a[2] for a in sides[1 - side]) - sum(a[2] or 0 for a in sides[side])
        return {block: sum(arc[2] for arc in sides[0]) for block, sides in ends.items()}

    def ways_out(self, block):
        """The arcs of a block except those of exceptions: where a call may leave, all but the one to the next block."""
        call = any(flags & FAKE for _, flags, _ in self.arcs[block])
        return [arc for arc in self.arcs[block] if not arc[1] & FAKE and (not call or arc[1] & FALL)]

    def normal_blocks(self):
        reached, waiting = {0}, [0]
        while waiting:
            for destination, _, _ in self.ways_out(waiting.pop()):
                if destination not in reached:
                    reached.add(destination)
                    waiting.append(destination)
        return reached

    def measure(self, counters):
        """{(file, line): executed} and {(file, line): [taken ways out of each block with a decision]}"""
        counts = self.count(counters)
        normal = self.normal_blocks()
        executed, decisions = {}, collections.defaultdict(list)
        for block, places in self.lines.items():
            for place in places:
                executed[place] = executed.get(place, False) or counts.get(block, 0) > 0
        normal_places = {place for block in normal for place in self.lines.get(block, [])}
        for block in sorted(self.lines):
            place = self.lines[block][-1]
            ways = self.ways_out(block)
            if len(ways) > 1 and (block in normal or place not in normal_places):
                decisions[place].append([count > 0 for _, _, count in ways])
        return executed, decisions


def dump(path):
    return subprocess.run(["gcov-dump", "-l", path], capture_output=True, text=True, check=True).stdout.splitlines()


def read_functions(notes):
    """{identifier: Function} of a .gcno file."""
    functions, function, folder = {}, None, ""
    for line in dump(notes):
        if match := re.search(r":cwd: (.*)", line):
            folder = match[1]
        elif match := re.search(r":FUNCTION ident=(\d+)", line):
            function = functions[match[1]] = Function()
        elif match := re.search(r"\sblock (\d+):", line):
            block, rest = int(match[1]), line[match.end():]
            if "`" in rest:
                for name, numbers in re.findall(r"`([^']*)':([\d, ]*)", rest):
                    file = os.path.normpath(os.path.join(folder, name))
                    function.lines[block] += [(file, int(number)) for number in re.findall(r"\d+", numbers)]
            else:
                function.arcs[block] += [[int(to), int(flags, 16), None]
                                         for to, flags in re.findall(r"(\d+):([0-9a-f]{4})", rest)]
    return functions


def read_counters(data):
    """{identifier: counters} of a .gcda file, which is absent when nothing of the object ran."""
    counters, identifier = collections.defaultdict(list), None
    for line in dump(data) if data.exists() else []:
        if match := re.search(r":FUNCTION ident=(\d+)", line):
            identifier = match[1]
        elif identifier and (match := re.search(r"\s\d+: ((?:-?\d+ )+)$", line)):
            counters[identifier] += map(int, match[1].split())
    return counters


def measure(build):
    """{file: {line: executed}} and {file: {line: {shape: [taken, ...]}}} of all object files together."""
    lines = collections.defaultdict(dict)
    branches = collections.defaultdict(lambda: collections.defaultdict(dict))
    for notes in sorted(pathlib.Path(build).rglob("*.gcno")):
        counters = read_counters(notes.with_suffix(".gcda"))
        for identifier, function in read_functions(notes).items():
            executed, decisions = function.measure(counters[identifier])
            for (file, line), ran in executed.items():
                lines[file][line] = lines[file].get(line, False) or ran
            for (file, line), ways in decisions.items():
                shape = tuple(map(len, ways))
                taken = [way for decision in ways for way in decision]
                old = branches[file][line].get(shape, taken)
                branches[file][line][shape] = [a or b for a, b in zip(old, taken)]
    return lines, branches


def read_excuses(path):
    excuses = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path else [], 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 3 or not all(parts):
                sys.exit(f"{path}:{number}: expected FILE | source text | reason")
            excuses.append((number, *parts))
    return excuses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=float, default=95)
    parser.add_argument("--excuses", type=pathlib.Path)
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("folders", metavar="FOLDER", nargs="+")
    options = parser.parse_args()
    lines, branches = measure(options.build)
    excuses, used = read_excuses(options.excuses), set()
    missed, wrong = [], []
    print(f"{'folder':14} {'lines':>6} {'run':>6} {'branches':>9} {'taken':>6} {'percent':>8} {'excused':>8}")
    for folder in options.folders:
        root = str(pathlib.Path(folder).resolve()) + "/"
        names = {file: f"{folder}/{file[len(root):]}" for file in sorted(lines) if file.startswith(root)}
        names = {file: name for file, name in names.items() if name not in options.skip}
        total = taken = excused = 0
        line_counts = [ran for file in names for ran in lines[file].values()]
        for file, name in names.items():
            text = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
            for line, shapes in sorted(branches[file].items()):
                source = text[line - 1]
                if NO_DECISION.match(source):
                    continue
                ways = [way for shape in shapes.values() for way in shape]
                total += len(ways)
                taken += sum(ways)
                if all(ways):
                    continue
                reasons = [number for number, path, part, _ in excuses if path == name and part in source]
                used.update(reasons)
                excused += len(ways) - sum(ways) if reasons else 0
                if not reasons:
                    missed.append(f"{name}:{line}: {len(ways) - sum(ways)} of {len(ways)}: {source.strip()}")
        percent = 100 * taken / total if total else 0
        print(f"{folder:14} {len(line_counts):6} {sum(line_counts):6} {total:9} {taken:6} {percent:7.2f}% {excused:8}")
        if percent < options.least:
            wrong.append(f"{folder}: {percent:.2f} % of {total} branches are taken, expected {options.least:g} %")
    for place in missed:
        print(place)
    wrong += [f"{len(missed)} lines have branches not taken and no excuse"] if missed else []
    wrong += [f"{options.excuses}:{number}: no branch of {path} is not taken in a line with: {part}"
              for number, path, part, _ in excuses if number not in used]
    for message in wrong:
        print(f"branch_table.py: {message}", file=sys.stderr)
    return 1 if wrong else 0


sys.exit(main())
