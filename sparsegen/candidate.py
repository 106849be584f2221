"""A kernel file: a TOML header in the leading comment, then source. Text in, `Candidate` out, and back.

A hand-written template, a generated kernel, a cached kernel and a test adversary are the same kind of file. The
grammar of the header:

    about  = "one sentence: who owns a row"
    op     = "spmv" | "spmm"
    format = "csr"                        # of the whole matrix; or [[part]] tables, see below
    zero   = ["y"]                        # the kernel accumulates: the host applies beta first
    [scratch]
    carry = ["ACC", "ceil_div(nnz, TILE)"]  # CUDA: element type and count; passed before alpha
    [[launch]]                            # in order, on one stream
    entry = "spmv"                        # the function
    items = "m"                           # C++: work items, cut for the threads by the format
    grid = "ceil_div(m, BLOCK)"           # CUDA
    block = "BLOCK"
    shared_bytes = "0"
    [params]                              # one value each
    [tune]                                # lists: the file stands for every combination
    values = ["full", "f32"]              # see values.py; every other name becomes a macro
    TURN_B = [0, 1]                       # C++, SpMM: 1 has the host copy a B stored by columns into rows at every call
    [[part]]                              # a composite: parts of the rows, run in order, later ones accumulate
    select = "dense_rows"                 # see composite.py
    format = "dcsr"
    params = { }                          # of this part's format alone
    [[part.launch]]
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sparsegen import formats, ops, values
from sparsegen.errors import SparsegenValueError

SELECTS = ("all", "dense_rows", "rest")
_HEADER = re.compile(r"\A\s*/\*\s*sparsegen\b(.*?)\*/", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_PARAMETER = re.compile(r"[A-Z](_?[A-Z0-9])*")
_RESERVED = re.compile(  # macros of the signature, and operands
    r"VALUE|STORED|ACC|INDEX|OFFSET|LOCAL|LANES|CONSTANT_VALUES|CHECK_FINITE|[BC]_BY_ROW|SIZES|EPILOGUE|\w+_ARRAYS|[ABC]"
)
_MOST_SOURCE = 1 << 16
_MOST_INSTANCES = 256
_EXPRESSION = re.compile(r"[A-Za-z0-9_+\-*/%(), ]*")


@dataclass(frozen=True)
class Launch:
    """One call of one entry: on the CPU over `items`, in CUDA over a grid. All but entry are expressions."""

    entry: str
    items: str = ""
    grid: str = ""
    block: str = ""
    shared_bytes: str = "0"


@dataclass(frozen=True)
class Part:
    """Rows of A in one format, with the launches that multiply them."""

    select: str
    format: str
    launches: tuple[Launch, ...]
    params: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A kernel as text with its checked header. `tune` empty: one kernel; else a template, see `instances`."""

    language: str
    op: str
    parts: tuple[Part, ...]
    source: str
    params: Mapping[str, int | str] = field(default_factory=dict)
    tune: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    zero: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    about: str = ""
    name: str = ""
    origin: str = "user"

    @property
    def format(self) -> str:
        return "+".join(part.format for part in self.parts)

    @property
    def schedule(self) -> str:
        """What the name adds to the format: csr_scalar -> scalar."""
        prefix = self.parts[0].format + "_" if len(self.parts) == 1 else ""
        return self.name.removeprefix(prefix) or self.name

    @property
    def turns(self) -> bool:
        """Whether the host copies a B stored by columns into rows before every call."""
        return self.language == "cpp" and self.op == "spmm" and self.params.get("TURN_B") == 1

    @property
    def encoding(self) -> str:
        return str(self.params.get("values", "full"))

    @property
    def atomic(self) -> bool:
        """Whether it adds atomically, so that sums of floating point numbers are not the same in every run."""
        return re.search(r"\bATOMIC_ADD(_C)?\b|\batomicAdd\b", self.source) is not None

    @property
    def key(self) -> str:
        """Equal for candidates that are the same kernel: comments, blank space, name and origin do not count."""
        bare = replace(self, source=normalised(self.source), about="", name="", origin="")
        return hashlib.blake2b(text(bare).encode(), digest_size=16).hexdigest()

    def format_params(self, part: Part) -> dict[str, int]:
        """Arguments for part.format's functions: its own, else the file's, else the format's defaults."""
        defaults = formats.get(part.format).PARAMS
        return {name: int(part.params.get(name, self.params.get(name, value))) for name, value in defaults.items()}

    @property
    def label(self) -> str:
        """Name and parameters on one line, for reports."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.params.items())]).strip()


def parse(source_text: str, *, name: str = "", origin: str = "user", language: str | None = None) -> Candidate:
    """Read a kernel file. Raises SparsegenValueError that says which rule of the grammar it breaks."""
    if len(source_text) > _MOST_SOURCE:
        raise _bad(name, f"the file has {len(source_text)} characters", f"at most {_MOST_SOURCE}")
    found = _HEADER.match(source_text)
    if not found:
        raise _bad(name, "no header", "the file to begin with a comment '/* sparsegen ... */' that holds TOML")
    try:
        header = tomllib.loads(found.group(1))
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"the header is not TOML: {error}", "name = value lines and [tables]") from None
    source = source_text[found.end() :].strip("\n")
    language = language or ("cuda" if re.search(r"\b__global__\b", normalised(source)) else "cpp")
    known = {"about", "op", "format", "zero", "scratch", "launch", "params", "tune", "part"}
    if unknown := sorted(set(header) - known):
        raise _bad(name, f"unknown header fields {unknown}", f"only {sorted(known)}")
    op = header.get("op")
    if op not in ops.names():
        raise _bad(name, f"op = {op!r}", f"one of {ops.names()}")
    params = _params(name, header.get("params", {}))
    tune = {key: _tune(name, key, value) for key, value in _table(name, "tune", header.get("tune", {})).items()}
    if both := sorted(set(params) & set(tune)):
        raise _bad(name, f"{both} in [params] and in [tune]", "each in one of them")
    if math.prod(map(len, tune.values())) > _MOST_INSTANCES:
        raise _bad(name, f"{math.prod(map(len, tune.values()))} instances", f"at most {_MOST_INSTANCES} combinations")
    if not isinstance(header.get("about", ""), str):
        raise _bad(name, f"about = {header['about']!r}", "a sentence")
    zero = tuple(_strings(name, "zero", header.get("zero", [])))
    output = ops.get(op).OUTPUT
    if set(zero) - {output}:
        raise _bad(name, f"zero = {list(zero)}", f"[] or [{output!r}]")
    scratch = {}
    if "scratch" in header and language == "cpp":
        raise _bad(name, "[scratch]", "it in CUDA kernels only: a C++ kernel has local arrays")
    for key, value in _table(name, "scratch", header.get("scratch", {})).items():
        pair = _strings(name, f"scratch.{key}", value)
        if len(pair) != 2 or pair[0] not in ("ACC", "INDEX", "OFFSET", "VALUE"):
            raise _bad(name, f"scratch {key} = {value!r}", '["ACC" | "INDEX" | "OFFSET" | "VALUE", "count expression"]')
        scratch[_name(name, key)] = (pair[0], pair[1])
    candidate = Candidate(
        language=language, op=op, parts=_parts(name, header, language), source=source, params=params, tune=tune,
        zero=zero, scratch=scratch, about=header.get("about", ""), name=name, origin=origin,
    )  # fmt: skip
    entries = [launch.entry for part in candidate.parts for launch in part.launches]
    if missing := sorted({entry for entry in entries if not re.search(rf"\b{re.escape(entry)}\s*\(", source)}):
        raise _bad(name, f"no function {missing} in the source", "every [[launch]] entry to be defined")
    return candidate


def text(candidate: Candidate) -> str:
    """The kernel file of a candidate; `parse(text(c))` gives it back."""
    lines = ["/* sparsegen"]
    if candidate.about:
        lines.append(f"about = {_toml(candidate.about)}")
    lines.append(f"op = {_toml(candidate.op)}")
    whole = len(candidate.parts) == 1 and candidate.parts[0].select == "all" and not candidate.parts[0].params
    if whole:
        lines.append(f"format = {_toml(candidate.parts[0].format)}")
    if candidate.zero:
        lines.append(f"zero = {_toml(list(candidate.zero))}")
    for table in ("params", "tune", "scratch"):
        entries = getattr(candidate, table)
        if entries:
            lines.append(f"[{table}]")
            lines += [f"{key} = {_toml(value)}" for key, value in entries.items()]
    for part in candidate.parts:
        if not whole:
            lines += ["[[part]]", f"select = {_toml(part.select)}", f"format = {_toml(part.format)}"]
            if part.params:
                lines.append("params = { " + ", ".join(f"{k} = {_toml(v)}" for k, v in part.params.items()) + " }")
        for launch in part.launches:
            lines.append("[[launch]]" if whole else "[[part.launch]]")
            for key in ("entry", "items", "grid", "block", "shared_bytes"):
                value = getattr(launch, key)
                if value and (key, value) != ("shared_bytes", "0"):
                    lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, "*/", candidate.source, ""])


def instances(candidate: Candidate) -> Iterator[Candidate]:
    """Every combination of the tune lists, as candidates with params alone."""
    names = list(candidate.tune)
    for chosen in itertools.product(*candidate.tune.values()):
        yield replace(candidate, params={**candidate.params, **dict(zip(names, chosen, strict=True))}, tune={})


def normalised(source: str) -> str:
    """Source without comments and with single spaces, for keys and deduplication."""
    whole = re.sub(r"\\[ \t]*\n", "", source)  # first, as in the language: a splice may carry a comment on
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", " ", whole, flags=re.DOTALL)
    lines = []
    for line in bare.splitlines():
        line = " ".join(line.split())
        if line:
            lines.append(line)
    return "\n".join(lines)


_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"ceil_div": lambda a, b: -(-a // b), "min": min, "max": max}


def evaluate(expression: str, names: Mapping[str, int]) -> int:
    """Integer arithmetic over sizes and parameters: + - * // %, ceil_div, min, max. 0 <= result < 2^63.

    Raises SparsegenValueError for anything else, an unknown name, a division by zero or a result out of range.
    """

    def value(node: ast.AST, depth: int) -> int:
        if depth > 30:
            raise _expression(expression, "is nested too deeply")
        if isinstance(node, ast.Constant) and type(node.value) is int:
            result = node.value
        elif isinstance(node, ast.Name):
            if node.id not in names:
                raise _expression(expression, f"uses {node.id!r}; known are {', '.join(sorted(names))}")
            result = names[node.id]
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            result = _OPERATORS[type(node.op)](value(node.left, depth + 1), value(node.right, depth + 1))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
            and len(node.args) == 2
            and not node.keywords
        ):
            result = _FUNCTIONS[node.func.id](*(value(argument, depth + 1) for argument in node.args))
        else:
            raise _expression(expression, "may hold integers, names, + - * // %, ceil_div, min and max only")
        if not -(2**63) <= result < 2**63:
            raise _expression(expression, "leaves 64 bits")
        return result

    if len(expression) > 200:
        raise _expression(expression[:40] + "...", "is longer than 200 characters")
    if not _EXPRESSION.fullmatch(expression):
        raise _expression(expression, "may hold integers, names, + - * // %, ceil_div, min and max only")
    try:
        result = value(ast.parse(expression.strip(), mode="eval").body, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SparsegenValueError):
            raise
        raise _expression(expression, "is not an expression") from None
    except ZeroDivisionError:
        raise _expression(expression, "divides by zero") from None
    if result < 0:
        raise _expression(expression, f"is negative: {result}")
    return result


def _expression(expression: str, fault: str) -> SparsegenValueError:
    return SparsegenValueError(f"the launch expression {expression!r} {fault}")


def _bad(name: str, got: str, expected: str) -> SparsegenValueError:
    shown = got if len(got) <= 300 else got[:297] + "..."
    return SparsegenValueError(f"kernel file {name or '(unnamed)'}: {shown}; expected {expected}")


def _parts(name: str, header: dict, language: str) -> tuple[Part, ...]:
    if ("part" in header) == ("format" in header):
        raise _bad(name, "neither or both of format and [[part]]", "one of them")
    if "part" not in header:
        tables = [{"select": "all", "format": header["format"], "launch": header.get("launch")}]
    else:
        tables = header["part"]
        if "launch" in header:
            raise _bad(name, "[[launch]] beside [[part]]", "[[part.launch]] inside each part")
    if not isinstance(tables, list) or not 1 <= len(tables) <= 4:
        raise _bad(name, f"part = {tables!r}", "one to four [[part]] tables")
    parts = []
    for table in tables:
        table = _table(name, "part", table)
        if unknown := sorted(set(table) - {"select", "format", "launch", "params"}):
            raise _bad(name, f"unknown part fields {unknown}", "select, format, params and launch")
        if table.get("select") not in SELECTS:
            raise _bad(name, f"select = {table.get('select')!r}", f"one of {SELECTS}")
        if table.get("format") not in formats.names():
            raise _bad(name, f"format = {table.get('format')!r}", f"one of {formats.names()}")
        given = _params(name, table.get("params", {}))
        if unknown := sorted(set(given) - set(formats.get(table["format"]).PARAMS)):
            raise _bad(name, f"part params {unknown}", f"parameters of the format {table['format']}")
        own = {key: int(value) for key, value in given.items()}
        launches = table.get("launch")
        if not isinstance(launches, list) or not 1 <= len(launches) <= 8:
            raise _bad(name, f"launch = {launches!r}", "one to eight [[launch]] tables")
        parts.append(
            Part(table["select"], table["format"], tuple(_launch(name, each, language) for each in launches), own)
        )
    selects = sorted(part.select for part in parts)
    if selects not in (["all"], ["dense_rows", "rest"]):
        raise _bad(name, f"parts {selects}", "parts that cover every row once: all, or dense_rows and rest")
    return tuple(parts)


def _launch(name: str, table: object, language: str) -> Launch:
    table = _table(name, "launch", table)
    wanted = {"entry", "items"} if language == "cpp" else {"entry", "grid", "block"}
    allowed = wanted if language == "cpp" else wanted | {"shared_bytes"}
    if set(table) - allowed or wanted - set(table):
        raise _bad(name, f"launch fields {sorted(table)}", f"{sorted(wanted)} for a {language} kernel")
    for key, value in table.items():
        if not isinstance(value, str) or not value.strip():
            raise _bad(name, f"launch {key} = {value!r}", "a string with an expression")
    _name(name, table["entry"])
    return Launch(**table)


def is_parameter(name: str) -> bool:
    """Whether a parameter may have this name: capitals, and no macro of the signature."""
    return bool(_PARAMETER.fullmatch(name) and _NAME.fullmatch(name) and not _RESERVED.fullmatch(name))


def _params(name: str, table: object) -> dict[str, int | str]:
    return {_name(name, key): _param(name, key, value) for key, value in _table(name, "params", table).items()}


def _param(name: str, key: str, value: object) -> int | str:
    if key == "values":
        if value not in values.NAMES:
            raise _bad(name, f"values = {value!r}", f"one of {values.NAMES}")
        return str(value)
    if not _PARAMETER.fullmatch(key):
        raise _bad(name, f"parameter {key}", "capitals and single underscores: parameters are macros")
    if _RESERVED.fullmatch(key):
        raise _bad(name, f"parameter {key}", "a name that the signature does not use")
    if type(value) is not int or not 0 <= value < 2**31:
        raise _bad(name, f"parameter {key} = {value!r}", "an integer from 0 to 2^31 - 1")
    return value


def _tune(name: str, key: str, choices: object) -> tuple[int | str, ...]:
    if not isinstance(choices, list) or not 1 <= len(choices) <= _MOST_INSTANCES:
        raise _bad(name, f"tune {key} = {choices!r}", "a list of values")
    return tuple(_param(name, _name(name, key), choice) for choice in choices)


def _table(name: str, key: str, table: object) -> dict:
    if not isinstance(table, dict):
        raise _bad(name, f"{key} = {table!r}", "a table")
    return table


def _strings(name: str, key: str, strings: object) -> list[str]:
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise _bad(name, f"{key} = {strings!r}", "a list of strings")
    return strings


def _name(name: str, word: str) -> str:
    if not _NAME.fullmatch(word):
        raise _bad(name, f"the name {word!r}", "letters, digits and underscores")
    return word


def _toml(value: object) -> str:
    if isinstance(value, str):
        escaped = re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"\\u{ord(found.group()):04x}", value)
        return '"' + escaped.replace("*/", "*\\u002f") + '"'  # which would end the comment
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return str(value)
