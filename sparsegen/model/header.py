"""The header of a kernel file, line by line: what may come next for one problem, in the order `candidate.text` writes.

Free are the names of parameters, their values, the names of entries and the launch expressions; each is held to what
the file may still become. Formats and parameters must hold the matrix, as far as some parameter of the shipped
templates, or the parameters themselves once all are known, tell.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from sparsegen import candidate, composite, formats, ops, templates, values
from sparsegen.candidate import Candidate, Part
from sparsegen.composite import MOST_PARAM
from sparsegen.errors import SparsegenValueError
from sparsegen.model import expression, vocabulary
from sparsegen.model.vocabulary import Vocabulary, may_name
from sparsegen.problem import Problem
from sparsegen.screen.tokens import Refused

MOST_BLOCK = 1024  # threads
MOST_PARAMS, MOST_LAUNCHES, MOST_SCRATCH = 24, 8, 8  # of [params] beside those of the format, of a part, of [scratch]
MOST_NAME = 40
MOST_SIZE = (1 << 63) - 1
SOME_SIZE = 1 << 10  # what stands for a size that only packing tells
SCRATCH_KINDS = ("ACC", "INDEX", "OFFSET", "VALUE")
_PARAMETER = re.compile(r"(?P<name>[A-Z](?:_?[A-Z0-9])*_?)(?: (?:=(?: (?P<value>(?:0|[1-9][0-9]{0,4})?))?)?)?")
_INTEGER = re.compile(r"0|[1-9][0-9]{0,4}")
_ENDED = re.compile(r"(?<=[0-9]) $")
_COMMA = re.compile(r"(?<=[0-9]),$")
_ENTRY = re.compile(r'entry = "(?P<name>[A-Za-z][A-Za-z0-9_]{0,39})?(?P<end>")?')
_VALUE = re.compile(r'(?P<key>items|grid|block|shared_bytes) = "(?P<value>[A-Za-z0-9_+\-*/%(), ]*)(?P<end>")?')
_SCRATCH = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,39})(?P<rest>.*)")
_COUNT = re.compile(r'(?P<value>[A-Za-z0-9_+\-*/%(), ]*)(?P<end>"\]?)?')


@dataclass
class Rules:
    """What the headers of all samples for one problem share; what was asked of the matrix is asked once."""

    problem: Problem
    language: str
    closed: dict[str, Vocabulary | None] = field(default_factory=dict)
    _refused: dict[tuple, bool] = field(default_factory=dict)
    _refusals: dict[str, str | None] = field(default_factory=dict)
    _choices: dict[str, list[dict[str, int]]] = field(default_factory=dict)

    @cached_property
    def encodings(self) -> list[str]:
        return [name for name in values.NAMES if values.feasible(name, self.problem) is None]

    @cached_property
    def selects(self) -> tuple[str, ...]:
        return ("dense_rows", "rest") if composite.dense_rows(self.problem.pattern).any() else ()

    def holds(self, select: str, format: str, params: dict[str, int | str]) -> bool:
        """Whether the matrix, or a part of it, fits this format with all parameters given."""
        defaults = formats.get(format).PARAMS
        own = {name: int(params.get(name, value)) for name, value in defaults.items()}
        key = (select, format, *own.values(), params.get("values") == "constant")
        if key not in self._refused:
            encoding = {"values": params["values"]} if "values" in params else {}
            one = Candidate(self.language, self.problem.op, (Part(select, format, (), own),), "", {**own, **encoding})
            self._refused[key] = composite.feasible(one, self.problem) is not None
        return not self._refused[key]

    def might_hold(self, select: str, format: str, given: dict[str, int | str]) -> bool:
        """Whether some choice of the parameters that are not given yet fits."""
        known = {name: value for name, value in given.items() if name in (*formats.get(format).PARAMS, "values")}
        key = (select, format, *known.items())
        if key not in self._refused:
            self._refused[key] = not any(self.holds(select, format, {**each, **known}) for each in self.choices(format))
        return not self._refused[key]

    def choices(self, format: str) -> list[dict[str, int]]:
        """The parameters that shipped templates of the format may have, and its defaults."""
        if format not in self._choices:
            found = {name: {value} for name, value in formats.get(format).PARAMS.items()}
            for each in templates.load(self.language):
                for part in each.parts:
                    if part.format == format:
                        for name, seen in found.items():
                            seen |= {int(value) for value in each.tune.get(name, ())}
                            seen |= {int(table[name]) for table in (each.params, part.params) if name in table}
            rows = [dict(zip(found, row, strict=True)) for row in itertools.product(*map(sorted, found.values()))]
            defaults = formats.get(format).PARAMS.items()  # what most matrices fit comes first
            self._choices[format] = sorted(rows, key=lambda row: len(row.items() - defaults))
        return self._choices[format]

    def refusal(self, found: Candidate) -> str | None:
        """`templates.refusal`, asked once for all sources under the same parts and parameters."""
        if self.problem.deterministic:  # then it depends on the source
            return templates.refusal(found, self.problem)
        key = repr(([(part.select, part.format, found.format_params(part)) for part in found.parts], found.encoding))
        if key not in self._refusals:
            self._refusals[key] = templates.refusal(found, self.problem)
        return self._refusals[key]

    def words(self, format: str) -> frozenset[str]:
        """What a file in this format knows before it names anything, the format's parameters included."""
        return vocabulary.bare(self.language, self.problem.op, (format,), (), (), False).words

    def close(self, lines: tuple[str, ...]) -> Vocabulary | None:
        """The words for the source under these lines; None when they are no header for the problem."""
        head = "\n".join(lines)
        if head not in self.closed:
            self.closed[head] = self._closed(head)
        return self.closed[head]

    def _closed(self, head: str) -> Vocabulary | None:
        entries = "\n".join(f"{name}(" for name in re.findall(r'^entry = "(\w+)"$', head, re.MULTILINE))
        try:
            found = candidate.parse(f"{head}\n*/\n{entries}", language=self.language)
            known = Vocabulary.of(found, self.problem.deterministic)
        except (SparsegenValueError, Refused):
            return None
        named = any(entry in known.words for entry in known.heads)
        return None if named or self.refusal(found) else known


class Header:
    """The lines read so far, all legal, and the beginning of the next. Never changed: `line` and `with_tail` copy."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lines: tuple[str, ...] = ()
        self.tail = ""
        self.at = ""  # what the last line was: a key, or the head of a table
        self.select, self.format = "all", ""
        self.params: dict[str, int | str] = {}
        self.own: dict[str, int] = {}  # of the part
        self.scratch: tuple[str, ...] = ()
        self.entries: tuple[str, ...] = ()  # of the part
        self.taken: tuple[str, ...] = ()  # entries of the parts before
        self.parts: tuple[str, ...] = ()  # selects
        self.launches = 0  # of the part

    def advance(self, piece: str) -> tuple[Header, str | None] | None:
        """After a piece: the header, and the text behind its closing mark or None while it is open. None: illegal."""
        header, text = self, self.tail + piece
        while True:
            line, newline, rest = text.partition("\n")
            if line.startswith("*/"):
                return (header, line[2:] + newline + rest) if header._may_close() else None
            if not newline:
                if not header.may_begin(line):
                    return None
                header = copy.copy(header)
                header.tail = line
                return header, None
            after = header.line(line)
            if after is None:
                return None
            header, text = after, rest

    # ---- which lines may follow

    def literals(self) -> Iterator[str]:
        """The lines that may come next and hold nothing free."""
        rules, at, cuda = self.rules, self.at, self.rules.language == "cuda"
        goes_on = self.format or rules.selects  # what follows the tables is a launch, or a part
        if at == "":
            yield "/* sparsegen"
        if at == "begun":
            yield f'op = "{rules.problem.op}"'
        if at in ("op", "select"):
            select = self.select if at == "select" else "all"
            for name in formats.names():
                free = not any(self._clashes(each, name) for each in self._names())
                yield f'format = "{name}"' if free and rules.might_hold(select, name, self.params) else ""
        whole = at in ("format", "zero", "param", "scratch") and not self.parts
        if goes_on and (at == "op" or (at == "format" and whole)) and self.launches == 0:
            yield f'zero = ["{ops.get(rules.problem.op).OUTPUT}"]'
        if goes_on and (at in ("op", "zero") or (at == "format" and whole)):
            yield "[params]"
        if cuda and goes_on and (at in ("op", "zero", "param") or (at == "format" and whole)):
            yield "[scratch]" if not self.format or self._fits() else ""
        if at in ("[params]", "param") and "values" not in self.params:
            for name in rules.encodings:
                params = {**self.params, "values": name}
                held = not self.format or rules.might_hold(self.select, self.format, params)
                yield f'values = "{name}"' if held else ""
        if self.parts:
            if at in ("format", "params") or (self._launched() and self.launches < MOST_LAUNCHES):
                yield "[[part.launch]]" if self._fits() else ""
        elif self.format and (whole or (self._launched() and self.launches < MOST_LAUNCHES)):
            yield "[[launch]]" if self._fits() else ""
        opens = at in ("op", "zero", "param", "scratch") and not self.format and not self.parts
        if (opens or (self._launched() and len(self.parts) == 1)) and rules.selects:
            yield "[[part]]"
        if at == "[[part]]":
            for select in rules.selects:
                yield f'select = "{select}"' if select not in self.parts else ""

    def free(self, text: str) -> tuple[bool, bool]:
        """Whether `text` begins, and whether it is, a line with something free in it."""
        at, cuda = self.at, self.rules.language == "cuda"
        if at in ("[params]", "param") and (found := _PARAMETER.fullmatch(text)):
            name, value = found["name"], found["value"]
            if text == name:
                return self._may_become_parameter(name), False
            if not self._may_be_parameter(name) or int(value or 0) > MOST_PARAM:
                return False, False
            if value is None:
                return True, False
            whole = value != "" and self._might_fit({**self.params, name: int(value)})
            return whole or self._might_become(name, value, {}), whole
        if at in ("[scratch]", "scratch"):
            return self._scratch(text)
        if at == "format" and self.parts and formats.get(self.format).PARAMS:
            return self._own(text)
        if at in ("[[launch]]", "[[part.launch]]"):
            found = _ENTRY.fullmatch(text)
            if not found or not found["name"]:
                return 'entry = "'.startswith(text), False
            whole = found["end"] is not None
            return (self._may_be_entry if whole else self._may_become_function)(found["name"]), whole
        keys = {"entry": ("grid",) if cuda else ("items",), "grid": ("block",), "block": ("shared_bytes",)}.get(at, ())
        found = _VALUE.fullmatch(text)
        if not found:
            return any(f'{key} = "'.startswith(text) for key in keys), False
        if found["key"] not in keys or not self._expression(found["value"], found["end"] is not None, found["key"]):
            return False, False
        return True, found["end"] is not None

    def may_begin(self, text: str) -> bool:
        if text == "" or (text == "*" and self._may_close()):
            return True
        return self.free(text)[0] or any(each.startswith(text) for each in self.literals())

    # ---- after a line

    def line(self, line: str) -> Header | None:
        """The header with one more whole line; None when it may not come here."""
        if line not in self.literals() and not self.free(line)[1]:
            return None
        if not line:
            return None
        after = copy.copy(self)
        after.lines, after.tail = (*self.lines, line), ""
        key, _, value = line.partition(" = ")
        after.at = key if not value else key.strip()
        if line == "/* sparsegen":
            after.at = "begun"
        elif line in ("[[launch]]", "[[part.launch]]"):
            after.launches += 1
        elif line == "[[part]]":
            after.format, after.own, after.launches = "", {}, 0
            after.entries, after.taken = (), (*self.taken, *self.entries)
        elif key == "select":
            after.select, after.parts = value.strip('"'), (*self.parts, value.strip('"'))
        elif key == "format":
            after.format = value.strip('"')
        elif line in ("[params]", "[scratch]"):
            pass
        elif self.at in ("[params]", "param"):
            after.params = {**self.params, key: value.strip('"') if key == "values" else int(value)}
            after.at = "param"
        elif self.at in ("[scratch]", "scratch"):
            after.scratch, after.at = (*self.scratch, key), "scratch"
        elif key == "entry":
            after.entries = (*self.entries, value.strip('"'))
        elif key == "params":
            after.own = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", value)}
        return after

    def _launched(self) -> bool:
        last = ("block", "shared_bytes") if self.rules.language == "cuda" else ("items",)
        return self.launches > 0 and self.at in last

    def _may_close(self) -> bool:
        whole = self._launched() and len(self.parts) in (0, 2)
        return whole and self.rules.close(self.lines) is not None

    # ---- names: each has to go with what the format, known or to come, and the file call so

    def _names(self) -> tuple[str, ...]:
        return (*self.params, *self.scratch, *self.entries, *self.taken)

    def _clashes(self, name: str, format: str) -> bool:
        """Whether the format has this word: its parameters may be given."""
        given = name in self.params and name in formats.get(format).PARAMS
        return name in self.rules.words(format) and not given

    def _may_be_parameter(self, name: str) -> bool:
        """Of a format that is to come, any: there is none for which csr may not be written."""
        format = self.format or "csr"
        own = name in formats.get(format).PARAMS
        few = own or len(self.params) < MOST_PARAMS
        known = name in self.params or (name in self.rules.words(format) and not own)
        return few and not known and candidate.is_parameter(name)

    def _may_become_parameter(self, name: str) -> bool:
        if len(self.params) >= MOST_PARAMS:
            own = formats.get(self.format or "csr").PARAMS
            return any(each.startswith(name) and self._may_be_parameter(each) for each in own)
        return len(name) < MOST_NAME or self._may_be_parameter(name)

    def _may_be_function(self, name: str) -> bool:
        return may_name(name) and name not in self._names() and name not in self.rules.words(self.format or "csr")

    def _may_be_entry(self, name: str) -> bool:
        """Launched again, perhaps, but not by another part: its parameters are those of the format."""
        return name in self.entries or self._may_be_function(name)

    def _may_become_function(self, name: str) -> bool:
        may_grow = "__" not in name and not name.startswith("door") and len(name) < MOST_NAME
        return may_grow or self._may_be_entry(name)

    def _fits(self) -> bool:
        return self.rules.holds(self.select, self.format, {**self.params, **self.own})

    def _might_fit(self, params: dict[str, int | str]) -> bool:
        """Whether the format, where it is known, may still hold the matrix with these parameters."""
        if not self.format or not set(params) & set(formats.get(self.format).PARAMS):
            return True
        if set(formats.get(self.format).PARAMS) <= set(params):
            return self.rules.holds(self.select, self.format, params)
        return self.rules.might_hold(self.select, self.format, params)

    def _might_become(self, name: str, digits: str, own: dict[str, int]) -> bool:
        """Whether a parameter that begins with these digits may fit: as it stands, or as one that templates have."""
        if digits == "" or not self.format or name not in formats.get(self.format).PARAMS:
            return True
        known = {str(each[name]) for each in self.rules.choices(self.format)}
        wanted = {digits, *(each for each in known if each.startswith(digits))}
        return any(self._might_fit({**self.params, **own, name: int(each)}) for each in wanted)

    def _own(self, text: str) -> tuple[bool, bool]:
        """A part's `params = { NAME = 1, NAME = 2 }`."""
        head = "params = { "
        if not text.startswith(head):
            return head.startswith(text), False
        defaults, params = formats.get(self.format).PARAMS, {}
        body, closing, more = text[len(head) :].partition(" }")
        if not closing and _ENDED.search(body):
            body, closing = body[:-1], " "
        *whole, last = _COMMA.sub(", ", body).split(", ")
        for pair in [*whole, *([last] if closing else [])]:
            name, _, value = pair.partition(" = ")
            if name not in defaults or name in params or not _INTEGER.fullmatch(value) or int(value) > MOST_PARAM:
                return False, False
            params[name] = int(value)
        if closing:
            fits = not more and self.rules.holds(self.select, self.format, {**self.params, **params})
            return fits, fits and closing != " "
        names = [f"{name} = " for name in defaults if name not in params]
        if not names or (whole and not self._might_fit({**self.params, **params})):
            return False, False
        name, _, value = last.partition(" = ")
        if f"{name} = " in names and last.startswith(f"{name} = ") and (value == "" or _INTEGER.fullmatch(value)):
            return int(value or 0) <= MOST_PARAM and self._might_become(name, value, params), False
        return any(each.startswith(last) for each in names), False

    def _scratch(self, text: str) -> tuple[bool, bool]:
        """A line of `[scratch]`: name = ["ACC", "count"]."""
        found = _SCRATCH.fullmatch(text)
        if not found or len(self.scratch) >= MOST_SCRATCH:
            return text == "", False
        if not found["rest"]:
            return self._may_become_function(found["name"]), False
        if not self._may_be_function(found["name"]):
            return False, False
        for kind in SCRATCH_KINDS:
            head = f' = ["{kind}", "'
            if head.startswith(found["rest"]):
                return True, False
            if found["rest"].startswith(head) and (count := _COUNT.fullmatch(found["rest"], len(head))):
                whole = count["end"] is not None
                return self._expression(count["value"], whole, "scratch"), count["end"] == '"]'
        return False, False

    def _expression(self, text: str, ended: bool, key: str) -> bool:
        """Whether a launch expression is one, or may become one when it has not ended."""
        problem = self.rules.problem
        sizes = {"m": problem.pattern.m, "n": problem.pattern.n, "nnz": problem.pattern.nnz}
        sizes |= {name: problem.k if name == "k" else SOME_SIZE for name in ops.get(problem.op).SIZES}
        if self.format:
            sizes |= dict.fromkeys(formats.get(self.format).SIZES, SOME_SIZE)
            if self.rules.language == "cuda":
                sizes |= formats.get(self.format).PARAMS | self.own
        known = sizes | {name: value for name, value in self.params.items() if isinstance(value, int)}
        least, most = (1, MOST_BLOCK) if key == "block" else (0, MOST_SIZE)
        return (expression.is_one if ended else expression.begins)(text, known, least, most)
