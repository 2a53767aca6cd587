"""Groups the sources of a target so that each group compiles as one file.

Usage: unity_groups.py FOLDER[:FOLDER...] LINES FILE...
Prints "GROUP FILE" for each file, and "own NAME" for constants to be renamed in each file. Includes start at the
including file's folder or at the FOLDERs; a group has at most LINES lines, or one file.

Two files clash when one declares in an anonymous namespace what the other, or a header of the other, declares
at namespace level. Clashing files go to different groups, so no source needs an edit. Constants (kName) of
several files do not clash: a macro gives each its own name.
"""

import os
import re
import sys

NOISE = re.compile(r'//(?! namespace)[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NAME = r"\b([A-Za-z_]\w*)"
TYPE = re.compile(r"\b(?:using|struct|class|enum class|enum|union)\s+(\w+)")
VARIABLE = re.compile(NAME + r"\s*(?:=|\{|;|\[|,|$)")
FUNCTION = re.compile(NAME + r"\s*\(")
CONSTANT = re.compile(r"k[A-Z]")
NOT_NAMES = re.compile(r"namespace|using (?:namespace|[\w:]+;)|template|static_assert|[A-Z_]+\(|\W|\d|$")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def declared(lines):
    """Names that the lines declare at column 0, which is namespace level."""
    names = set()
    for line in lines:
        if NOT_NAMES.match(line):
            continue
        before = None
        while before != line:  # template arguments declare nothing
            before, line = line, re.sub(r"<[^<>]*>", "", line)
        if "(" in line and "=" not in line.split("(")[0]:
            names.update(FUNCTION.findall(line)[:1])
        else:
            names.update(TYPE.findall(line) or VARIABLE.findall(line))
    return names


def private(code):
    """Names of the file's anonymous namespaces, and its aliases."""
    inside, lines = False, []
    for line in code.splitlines():
        if line.startswith("}  // namespace"):
            inside = False
        elif inside or line.startswith("using "):
            lines.append(line)
        elif line.startswith("namespace {"):
            inside = True
    return declared(lines)


class Headers:
    def __init__(self, folders):
        self.folders, self.known = folders, {}

    def reached(self, path, text):
        """Names that the headers of `text` in `path`, and their headers, declare."""
        names, waiting, seen = set(), self.included(path, text), set()
        while waiting:
            header = waiting.pop()
            if header not in seen:
                seen.add(header)
                own, further = self.read(header)
                names |= own
                waiting += further
        return names

    def included(self, path, text):
        """The headers of the project that `text`, the content of `path`, includes."""
        files = []
        for name in INCLUDE.findall(text):
            places = (f"{folder}/{name}" for folder in [os.path.dirname(path), *self.folders])
            files += [file for file in places if os.path.exists(file)][:1]
        return files

    def read(self, path):
        if path not in self.known:
            text = read(path)
            self.known[path] = declared(NOISE.sub("", text).splitlines()), self.included(path, text)
        return self.known[path]


class Source:
    def __init__(self, path, headers):
        text = read(path)
        code = NOISE.sub("", INCLUDE.sub("", text))
        self.path, self.lines = path, text.count("\n")
        self.private = private(code)
        self.visible = declared(code.splitlines()) | headers.reached(path, text)


def clash(a, b):
    return a.private & b.visible or b.private & a.visible


def main():
    headers, limit = Headers(sys.argv[1].split(":")), int(sys.argv[2])
    sources = [Source(path, headers) for path in sys.argv[3:]]
    public = set().union(*(source.visible - source.private for source in sources))
    constants = {name for source in sources for name in source.private if CONSTANT.match(name)} - public
    for name in sorted(constants):
        if sum(name in source.private for source in sources) > 1:
            print("own", name)
    groups = []
    for source in sources:
        source.private -= constants
        for number, group in enumerate(groups):
            fits = sum(other.lines for other in group) + source.lines <= limit
            if fits and not any(clash(source, other) for other in group):
                break
        else:
            number, group = len(groups), []
            groups.append(group)
        group.append(source)
        print(f"group{number} {source.path}")


main()
