"""Draws mutants of C++ sources: each is one edit of one place. Read by scripts/mutate, whose help names the kinds.

The sources are formatted (scripts/format), so blanks tell a binary `<` from a template's, and a binary `*` from a
pointer's. Strings, comments, preprocessor lines, template arguments, static_asserts, the text of error messages,
sizes of work for the threads and code for GPUs alone are never edited.
"""
import hashlib, re
from collections import Counter
from dataclasses import dataclass, replace

FOLDERS = ("src/kernels/cpu", "src/autograd/ops", "src/io", "src/optim")
KINDS = ("sign", "index", "bound", "term", "constant", "condition")

TOKEN = re.compile(r"""
    (?P<blank>\s+ | //[^\n]* | /\*.*?\*/)
  | (?P<preprocessor>^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<text>R"(?P<fence>\w*)\(.*?\)(?P=fence)" | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
  | (?P<number>\.?\d(?:[eE][+-]|[pP][+-]|'(?=\w)|[\w.])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<operator><<=|>>=|\.\.\.|->|::|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^!=<>]=|.)""", re.X | re.S | re.M)
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
PRODUCTS = {"*", "/", "%"}
SUMS = {"+", "-", *PRODUCTS}
OPERATORS = {*SUMS, "<", ">", "<=", ">=", "==", "!=", "&&", "||", "<<", ">>", "&", "|", "^"}
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
KEYWORDS = {"return", "if", "for", "while", "switch", "case", "else", "do", "using", "const", "constexpr", "auto",
            "static", "template", "typename", "class", "struct", "throw", "new", "delete", "goto", "break", "continue"}
# The message of an error: these calls' arguments, of QUERN_CHECK all but the first.
MESSAGES = {"fail", "cat", "refuse", "lfs_hint"}
# Statements that name one of these decide how fast the result comes, not what it is.
PACE = re.compile(r"grain|spins|reserve|fadvise|madvise|prefetch|hardware_concurrency", re.I)
SWAPS = [("rows", "cols"), ("outer", "inner"), ("begin", "end"), ("first", "last"), ("stride_a", "stride_b"), ("i", "j"),
         ("H", "D"), ("B", "T"), ("N", "V"), ("T", "D"), ("m", "n"), ("Tq", "Tk"), ("H", "Hk"), ("C", "rows"),
         ("a_strides", "b_strides"), ("x_strides", "y_strides"), ("q", "k"), ("k", "v")]
OPPOSITE = {"+": "-", "-": "+", "+=": "-=", "-=": "+=", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
            "&&": "||", "||": "&&", "true": "false", "false": "true", "min": "max", "max": "min", "++": "--", "--": "++"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    kind: str
    start: int  # the edit replaces source[start:end]
    end: int
    new: str
    before: str  # the lines of the edit, in one line
    after: str
    nth: int  # of the file's equal edits of equal lines
    source: str

    def mutated(self):
        return self.source[:self.start] + self.new + self.source[self.end:]

    def key(self):
        """The same for the same edit while its line stays, wherever the line goes."""
        return f"{self.file} | {self.before} | {self.after}" + (f" | {self.nth}" if self.nth > 1 else "")

    def __str__(self):
        return f"{self.file}:{self.line}: {self.kind}: {self.before} -> {self.after}"


class Source:
    """The tokens of one file, and which of them may be edited."""

    def __init__(self, file, text):
        self.file, self.text = file, text
        self.tokens = [Token(m.lastgroup if m.lastgroup != "fence" else "text", m[0], *m.span())
                       for m in TOKEN.finditer(text)]
        self.tokens = [t for t in self.tokens if t.kind not in ("blank", "preprocessor")]
        self.partner = {}  # of each bracket: the other's position
        stack = []
        for i, token in enumerate(self.tokens):
            if token.text in OPEN:
                stack.append(i)
            elif token.text in CLOSE and stack:
                self.partner[i] = stack.pop()
                self.partner[self.partner[i]] = i
        self.fixed = [False] * len(self.tokens)
        self.fix_templates()
        self.fix_calls()

    def at(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def is_name(self, i):
        return 0 <= i < len(self.tokens) and self.tokens[i].kind == "name" and self.at(i) not in KEYWORDS

    def blank_before(self, i):
        return i > 0 and self.tokens[i].start > self.tokens[i - 1].end

    def blank_after(self, i):
        return i + 1 < len(self.tokens) and self.tokens[i + 1].start > self.tokens[i].end

    def binary(self, i):
        """True for an operator between two operands: one with blanks around."""
        return self.at(i) in OPERATORS and self.blank_before(i) and self.blank_after(i)

    def angle_end(self, i):
        """The position of the > that closes the template arguments opened at i, or i when it opens none."""
        depth, j = 0, i
        while j < len(self.tokens):
            if self.at(j) == "<" and not self.binary(j):
                depth += 1
            elif self.at(j) in (">", ">>") and not self.binary(j):
                depth -= len(self.at(j))
                if depth <= 0:
                    return j
            elif self.at(j) in (";", "{", "}"):
                return i
            j += 1
        return i

    def fix(self, begin, end):
        self.fixed[begin:end] = [True] * (end - begin)

    def statement(self, i):
        """The range of the statement around i."""
        begin = end = i
        while begin > 0 and self.at(begin - 1) not in (";", "{", "}"):
            begin -= 1
        while end < len(self.tokens) and self.at(end) not in (";", "{", "}"):
            end += 1
        return begin, end

    def fix_templates(self):
        for i, token in enumerate(self.tokens):
            if token.text == "<" and not self.binary(i):
                self.fix(i, self.angle_end(i) + 1)
            elif token.text == "template" and self.at(i + 1) != "<" or token.text in ("static_assert", "using", "throw"):
                self.fix(i, self.statement(i)[1])

    def fix_calls(self):
        for i, token in enumerate(self.tokens):
            if token.text in MESSAGES and self.at(i + 1) == "(":
                self.fix(i, self.partner[i + 1] + 1)
            elif token.text == "QUERN_CHECK":
                commas = self.commas(i + 1)
                self.fix((commas or [self.partner[i + 1]])[0], self.partner[i + 1])
            elif token.text == "parallel_for" and len(self.commas(i + 1)) > 1:  # the pieces' length
                self.fix(*self.commas(i + 1)[:2])
            elif token.text in ("row_grain", "on_gpu") and self.at(i + 1) == "(":
                self.fix(i, self.partner[i + 1] + 1)
        for i, token in enumerate(self.tokens):
            if token.kind == "name" and not self.fixed[i] and PACE.search(token.text):
                self.fix(*self.statement(i))

    def commas(self, i):
        """The positions of the commas between the arguments of the call whose ( is at i."""
        found, j = [], i + 1
        while self.partner.get(i, i) > j:
            if self.at(j) == ",":
                found.append(j)
            j = self.partner[j] + 1 if self.at(j) in OPEN else j + 1
        return found

    def operand_end(self, i, stops):
        """One past the last token of the operand that begins at i."""
        while i < len(self.tokens):
            text = self.at(i)
            if text in OPEN:
                i = self.partner.get(i, i)
            elif text == "<" and not self.binary(i):
                i = self.angle_end(i)
            elif (text in CLOSE or text in (",", ";", "?", ":") or text in ASSIGNMENTS or
                  self.binary(i) and text in stops):
                return i
            i += 1
        return i

    def operand_begin(self, i, stops):
        """The first token of the operand that ends with token i."""
        while i >= 0:
            text = self.at(i)
            if text in CLOSE:
                i = self.partner.get(i, i)
                if self.at(i) == "{" and not self.is_name(i - 1) and self.at(i - 1) != ">":
                    return i + 1 if self.at(i - 1) in (";", "{", "}", ")") else i
            elif (text in OPEN or text in (",", ";", "?", ":", "return", "case", "else") or text in ASSIGNMENTS or
                  self.binary(i) and text in stops):
                return i + 1
            i -= 1
        return 0

    # One function for each kind yields (first token, one past the last token, new text).

    def sign(self):
        for i, token in enumerate(self.tokens):
            if token.text in ("+", "-") and self.binary(i) or token.text in ("+=", "-="):
                yield i, i + 1, OPPOSITE[token.text]
            elif token.text == "-" and not self.blank_after(i):
                yield i, i + 1, ""
            elif token.text in ("++", "--") and self.at(i + 2) in (";", "]", ")") and not self.in_for_header(i):
                yield i, i + 1, OPPOSITE[token.text]

    def index(self):
        for i, token in enumerate(self.tokens):
            indexed = self.is_name(i - 1) or self.at(i - 1) in (")", "]")
            declared = self.is_name(i - 2) or self.at(i - 2) in (">", "*", "&") and not self.binary(i - 2)
            if token.text == "[" and indexed and not declared and self.partner.get(i, i) > i + 1:
                close = self.partner[i]
                inside = self.words(i + 1, close)
                if any(self.at(j) == "?" or self.binary(j) and self.at(j) not in SUMS for j in range(i, close)):
                    inside = f"({inside})"
                yield i + 1, close, inside + " + 1"
                if self.tokens[close - 1].kind != "number":
                    yield i + 1, close, inside + " - 1"
            if token.kind != "name" or self.declares(i) or self.at(i + 1) in ("(", "::") or self.at(i - 1) == "::":
                continue
            near = {t.text for t in self.tokens[max(0, i - 120):i + 120]}
            for pair in SWAPS:
                if token.text in pair:
                    other = pair[token.text == pair[0]]
                    if other in near:
                        yield i, i + 1, other

    def bound(self):
        for i, token in enumerate(self.tokens):
            if token.text in ("<", ">", "<=", ">=") and self.binary(i):
                yield i, i + 1, OPPOSITE[token.text]
                if self.in_for_header(i):
                    end = self.operand_end(i + 1, OPERATORS - SUMS)
                    yield i + 1, end, self.words(i + 1, end) + " - 1"
            elif token.text in ("min", "max") and self.at(i - 1) == "::" and self.at(i + 1) in ("(", "<"):
                yield i, i + 1, OPPOSITE[token.text]

    def term(self):
        for i, token in enumerate(self.tokens):
            if token.text in ("+", "-", "*", "/") and self.binary(i):
                stops = OPERATORS if token.text in PRODUCTS else OPERATORS - PRODUCTS
                end, begin = self.operand_end(i + 1, stops), self.operand_begin(i - 1, stops)
                if begin < i:
                    yield i - 1, end, self.at(i - 1)
                    if token.text in ("+", "*"):
                        yield begin, i + 2, self.at(i + 1)
        for i in range(len(self.tokens)):
            end = self.deletable_statement(i)
            if end:
                yield i, end + 1, ";"

    def constant(self):
        for i, token in enumerate(self.tokens):
            if token.text in ("true", "false"):
                yield i, i + 1, OPPOSITE[token.text]
            if token.kind != "number" or self.at(i - 1) == "=" and self.at(i - 2) in (")", "const", "override"):
                continue
            if self.at(i - 1) == "[" and self.is_name(i - 2) and self.is_name(i - 3):  # an array's extent
                continue
            value = re.fullmatch(r"(0[xX][0-9a-fA-F']+|[0-9'.]+(?:[eE][+-]?\d+)?)(\w*)", token.text)
            if not value:
                continue
            if re.fullmatch(r"0[xX].*|[0-9']+", value[1]):
                digits = value[1].replace("'", "")
                base = 8 if re.fullmatch("0[0-7]+", digits) else 0
                yield i, i + 1, f"{int(digits, base) + 1}{value[2]}" if base == 0 else f"0{int(digits, 8) + 1:o}{value[2]}"
            else:
                yield i, i + 1, (f"{float(value[1]) * 2}" if float(value[1]) else "1.0") + value[2]

    def condition(self):
        for i, token in enumerate(self.tokens):
            if token.text in ("&&", "||", "==", "!=") and self.binary(i):
                yield i, i + 1, OPPOSITE[token.text]
            elif token.text in ("if", "while") and self.at(i + 1) == "(":
                close = self.partner[i + 1]
                if self.at(i + 2) not in ("const", "auto") and ";" not in (self.at(j) for j in range(i + 2, close)):
                    yield i + 2, close, f"!({self.words(i + 2, close)})"
            elif token.text == "?" and self.blank_before(i):
                begin = self.operand_begin(i - 1, set())
                yield begin, i, f"!({self.words(begin, i)})"

    def words(self, begin, end):
        return self.text[self.tokens[begin].start:self.tokens[end - 1].end] if begin < end else ""

    def declares(self, i):
        """True where token i is the name of a declaration, or a parameter's."""
        before = self.at(i - 1)
        of_type = self.is_name(i - 2) or self.at(i - 2) in (">", "auto", "const")
        pointer = before in ("*", "&", "&&") and not self.binary(i - 1) and of_type
        return (self.is_name(i - 1) or before in ("const", "auto", "class", "typename") or pointer or
                before == ">" and self.fixed[i - 1])

    def in_for_header(self, i):
        for j in range(i, max(0, i - 60), -1):
            if self.at(j) in ("{", "}"):
                return False
            if self.at(j) == "(" and self.at(j - 1) == "for":
                return self.partner[j] > i
        return False

    def deletable_statement(self, i):
        """The position of the ; of `place = value;`, `place += value;` or `call(...);` at i, or None."""
        before = self.at(i - 1)
        if not (before in (";", "{", "}", "else") or before == ")" and self.at(self.partner.get(i - 1, 0) - 1) in
                ("if", "for", "while")):
            return None
        j = i + 1 if self.at(i) in ("*", "++", "--") else i
        if not (self.is_name(j) or self.at(j) == "("):
            return None
        called, joints = False, (".", "->", "::")
        while j < len(self.tokens):
            text = self.at(j)
            if text in ("(", "["):
                called = text == "("
                j = self.partner.get(j, j) + 1
            elif text == "<" and not self.binary(j):
                j = self.angle_end(j) + 1
            elif text in joints or self.is_name(j) and (j == i or self.at(j - 1) in (*joints, "*", "++", "--")):
                called = False
                j += 1
            else:
                break
        if self.at(j) == ";":
            return j if called or self.at(i) in ("++", "--") else None
        if self.at(j) not in ASSIGNMENTS or self.at(j + 1) in ("default", "delete"):
            return None
        return self.statement_end(j)

    def statement_end(self, j):
        """The position of the ; after j, or None when a bracket closes before it."""
        while j < len(self.tokens) and self.at(j) != ";":
            j = self.partner[j] + 1 if self.at(j) in OPEN else j + 1
            if self.at(j) in CLOSE:
                return None
        return j

    def mutants(self):
        seen, equal = set(), Counter()
        for kind in KINDS:
            for begin, end, new in getattr(self, kind)():
                if any(self.fixed[begin:end]) and not (kind == "term" and new == ";" and not self.fixed[begin]):
                    continue
                start, stop = self.tokens[begin].start, self.tokens[end - 1].end
                if (start, stop, new) in seen or self.text[start:stop] == new:
                    continue
                seen.add((start, stop, new))
                mutant = self.mutant(kind, start, stop, new)
                equal[mutant.key()] += 1
                yield replace(mutant, nth=equal[mutant.key()])

    def mutant(self, kind, start, stop, new):
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", stop)
        one_line = lambda text: " ".join(re.sub(r"//[^\n]*", "", text).split())
        before, after = self.text[first:last], self.text[first:start] + new + self.text[stop:last]
        return Mutant(self.file, self.text.count("\n", 0, start) + 1, kind, start, stop, new, one_line(before),
                      one_line(after), 1, self.text)


def all_mutants(root, folder):
    for path in sorted((root / folder).rglob("*.cpp")):
        yield from Source(str(path.relative_to(root)), path.read_text()).mutants()


def draw(root, seed):
    """Mutants without end: the folders take turns, then the kinds. Within both, the order is that of a hash of seed,
    file and edit, so that a change of one file keeps the order of all other mutants."""
    waiting = {}
    for folder in FOLDERS:
        found = {kind: [] for kind in KINDS}
        for mutant in all_mutants(root, folder):
            order = hashlib.sha256(f"{seed} {mutant.key()} {mutant.kind}".encode()).digest()
            found[mutant.kind].append((order, mutant.start, mutant))
        for kind in KINDS:
            waiting[folder, kind] = [entry[2] for entry in sorted(found[kind], key=lambda entry: entry[:2], reverse=True)]
    turn = 0
    while any(waiting.values()):
        left = waiting[FOLDERS[turn % len(FOLDERS)], KINDS[turn // len(FOLDERS) % len(KINDS)]]
        if left:
            yield left.pop()
        turn += 1
