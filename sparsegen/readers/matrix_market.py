"""Matrix Market text (Boisvert, Pozo & Remington, 1996), coordinate and array, and its vectors.

Two readers of one grammar. fast_matrix_market (or scipy's copy of it) is fast but reads "1D3" or "1.2.3" as 1 and
"1,5" as 1, ignores further columns, and crashes on a NUL byte; so it is shown only bodies in which an audit of all
bytes found nothing but plain numbers, as many as promised. Everything else goes line by line: odd files are read
where there is no doubt what they mean, and refused by line where there is.
"""

from __future__ import annotations

import io
import re
import warnings
from array import array
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from sparsegen.errors import SparsegenValueError
from sparsegen.readers.stored import Stored, from_entries

BANNER = re.compile(rb"\s*%%?MatrixMarket\b", re.IGNORECASE)
REAL = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eEdD][+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE)
INTEGER = re.compile(rb"[+-]?\d+")
WORDS = re.compile(rb"(?<![^\s+-])(?:nan|inf|infinity)(?!\S)", re.IGNORECASE)
INFINITE = re.compile(rb"inf", re.IGNORECASE)
COMMENTS = 1 << 24  # bytes of comments before the size line
LINE = 256  # bytes of a line, comments included, that no honest file exceeds on average

OBJECTS, LAYOUTS = ("matrix", "vector"), ("coordinate", "array")
FIELDS = {"real": "real", "double": "real", "complex": "complex", "integer": "integer", "pattern": "pattern"}
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
DTYPES = {"real": np.float64, "complex": np.complex128, "integer": np.int64, "pattern": np.float64}


@dataclass(frozen=True)
class Header:
    vector: bool
    layout: str
    field: str
    symmetry: str
    shape: tuple[int, int]
    entries: int  # lines that must follow
    start: int  # byte and line where they begin
    line: int

    @property
    def indices(self) -> int:
        """Indices on a line."""
        return 0 if self.layout == "array" else 1 if self.vector else 2

    @property
    def values(self) -> int:
        """Values on a line."""
        return {"pattern": 0, "complex": 2}.get(self.field, 1)


def sniff(head: bytes) -> bool:
    """Whether a file that begins with `head` says it is Matrix Market."""
    return BANNER.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def longest(head: bytes) -> int | None:
    """The bytes an honest file beginning with `head` has at most; None where its size line is not in `head`."""
    try:
        header = _header(head[: head.rfind(b"\n") + 1], "")
    except SparsegenValueError:
        return None
    return header.start + LINE * (header.entries + (1 << 16))


def read(raw: bytes, where: str) -> Stored:
    """The matrix of Matrix Market text `raw`. Raises SparsegenValueError naming `where` and the line."""
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")
    header = _header(raw, where)
    parsed = _fast(raw, header)
    if parsed is None:
        parsed = _careful(raw, header, where)
    rows, columns, data = parsed
    if header.layout == "array":
        rows, columns = _places(header)
    return from_entries(rows, columns, data, header.shape, header.field, header.symmetry, where)


def _header(raw: bytes, where: str) -> Header:
    lines = _numbered_lines(raw, 0, 1)
    for _start, number, line in lines:  # noqa: B007 - used below
        if line.strip(b"\xef\xbb\xbf \t\r\n"):
            break
    else:
        _refuse(where, 1, "the file is empty; expected a %%MatrixMarket banner")
    if not sniff(line):
        _refuse(where, number, f"got {_shown(line)}; expected a %%MatrixMarket banner")
    words = line.decode("latin-1").lower().split()[1:]
    if len(words) != 4:
        _refuse(where, number, f"the banner has {len(words)} words; expected object, format, field and symmetry")
    for word, known in zip(words, (OBJECTS, LAYOUTS, FIELDS, SYMMETRIES), strict=True):
        if word not in known:
            _refuse(where, number, f"{word!r} in the banner; expected one of {', '.join(known)}")
    kind, layout, field, symmetry = words[0], words[1], FIELDS[words[2]], words[3]
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        _refuse(where, number, f"a pattern has no values, which {layout if layout == 'array' else symmetry} needs")
    if kind == "vector" and symmetry != "general":
        _refuse(where, number, f"a vector cannot be {symmetry}")
    expected = {"coordinate": ["rows", "columns", "entries"], "array": ["rows", "columns"]}[layout]
    if kind == "vector":
        expected.remove("columns")
    for start, number, line in lines:
        if line.strip() and not line.lstrip().startswith(b"%"):
            break
        if start > COMMENTS:
            _refuse(where, number, f"no size line in the first {COMMENTS >> 20} MiB")
    else:
        _refuse(where, number, f"the file ends before its size line ({', '.join(expected)})")
    tokens = line.split(b"%")[0].split()
    if len(tokens) != len(expected) or not all(INTEGER.fullmatch(token) for token in tokens):
        _refuse(where, number, f"size line {_shown(line)}; expected {len(expected)} integers: {', '.join(expected)}")
    if any(len(token.lstrip(b"+0")) > 19 or not 0 <= int(token) < 2**63 for token in tokens):
        _refuse(where, number, f"size line {_shown(line)}; expected sizes from 0 to 2^63 - 1")
    sizes = [int(token) for token in tokens]
    m, n = sizes[0], 1 if kind == "vector" else sizes[1]
    if symmetry != "general" and m != n:
        _refuse(where, number, f"a {symmetry} matrix must be square; the size line says {m} x {n}")
    if layout == "coordinate":
        entries = sizes[-1]
    else:
        entries = {"general": m * n, "skew-symmetric": m * (m - 1) // 2}.get(symmetry, m * (m + 1) // 2)
    return Header(kind == "vector", layout, field, symmetry, (m, n), entries, start + len(line), number + 1)


def _places(header: Header) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the values of an array file: by columns, the lower triangle where symmetric."""
    m, n = header.shape
    if header.symmetry == "general":
        columns, rows = np.divmod(np.arange(m * n), max(m, 1))
        return rows, columns
    columns, rows = np.triu_indices(n, 1 if header.symmetry == "skew-symmetric" else 0)
    return rows, columns


# ---------------------------------------------------------------- the fast way

NEWLINE, SPACE, DIGIT, SIGN, DOT, EXPONENT, OTHER = range(7)
GAPS = (NEWLINE, SPACE)
_CLASSES = np.full(256, OTHER, np.uint8)
for _class, _bytes in enumerate((b"\n", b" \t\r\v\f", b"0123456789", b"+-", b".", b"eE")):
    _CLASSES[list(_bytes)] = _class
CLASSES, DIGITS, PLAIN = _CLASSES.tobytes(), b"0123456789", b"0123456789+-.eE \t\r\v\f\n"
CHUNK = 1 << 17


def _windows(follows: dict[int, tuple[int, ...]], never: list[tuple[tuple[int, ...], ...]]) -> np.ndarray:
    """Which windows of three classes may occur: each class followed by one that may follow it, bar those in `never`."""
    pair, allowed = np.zeros((8, 8), bool), np.zeros((8, 8, 8), bool)
    for one, others in follows.items():
        pair[one, list(others)] = True
    allowed[:] = pair[:, :, None] & pair[None, :, :]
    for window in never:
        allowed[np.ix_(*window)] = False
    return allowed.ravel()


# A number is sign? (digits .? digits? | . digits) (e sign? digits)?. Neighbours cannot see a second dot beyond a
# digit; in the text without its digits they can. What passes both sets of windows is numbers and nothing else.
WITH_DIGITS = _windows(
    {
        NEWLINE: (*GAPS, DIGIT, SIGN, DOT), SPACE: (*GAPS, DIGIT, SIGN, DOT), DIGIT: (*GAPS, DIGIT, DOT, EXPONENT),
        SIGN: (DIGIT, DOT), DOT: (*GAPS, DIGIT, EXPONENT), EXPONENT: (DIGIT, SIGN),
    },
    never=[((*GAPS, SIGN), (DOT,), (*GAPS, EXPONENT))],
)  # fmt: skip
WITHOUT_DIGITS = _windows(
    {
        NEWLINE: (*GAPS, SIGN, DOT, EXPONENT), SPACE: (*GAPS, SIGN, DOT, EXPONENT), SIGN: (*GAPS, DOT, EXPONENT),
        DOT: (*GAPS, EXPONENT), EXPONENT: (*GAPS, SIGN),
    },
    never=[((EXPONENT,), (SIGN,), (DOT, EXPONENT))],
)  # fmt: skip


def _counted(text: bytes | memoryview, without: bytes = b"") -> np.ndarray:
    """How often each window of three classes occurs in `text`, its bytes `without` left out, with newlines around."""
    counts, tail = np.zeros(512, np.int64), bytes((NEWLINE, NEWLINE))
    for start in range(0, len(text) + 1, CHUNK):
        part = tail + bytes(text[start : start + CHUNK]).translate(CLASSES, without)
        if start + CHUNK > len(text):
            part += bytes((NEWLINE, NEWLINE))
        codes = np.frombuffer(part, np.uint8).astype(np.uint16)
        counts += np.bincount(codes[:-2] * 64 + codes[1:-1] * 8 + codes[2:], minlength=512)
        tail = part[-2:]
    return counts


def _audit(body: bytes | memoryview, header: Header) -> bool:
    """Whether `body` is nothing but plain numbers, as many as the size line promises."""
    counts = _counted(body)
    if counts.reshape(8, 8, 8)[:, OTHER].any():
        text = WORDS.sub(b"0", body)
        if text.translate(None, PLAIN):
            return False
        body, counts = text, _counted(text)
    if counts[~WITH_DIGITS].any() or _counted(body, without=DIGITS)[~WITHOUT_DIGITS].any():
        return False
    by_class = counts.reshape(8, 8, 8)
    if header.field in ("integer", "pattern") and by_class[:, DOT : EXPONENT + 1].any():
        return False
    tokens = by_class[: SPACE + 1, SPACE + 1 :].sum()
    return tokens == header.entries * (header.indices + header.values)


def _fast(raw: bytes, header: Header):
    """Triplets of a plain body (rows and columns empty for an array), or None: then it needs care."""
    width = header.indices + header.values
    if header.vector or header.entries == 0 or 2 * width * header.entries > len(raw) - header.start + 1:
        return None
    body: bytes | memoryview = memoryview(raw)[header.start :]
    if header.field in ("real", "complex") and (raw.find(b"D", header.start) + raw.find(b"d", header.start)) > -2:
        body = raw[header.start :].translate(bytes.maketrans(b"Dd", b"Ee"))
    if not _audit(body, header):
        return None
    sizes = (*header.shape, header.entries) if header.layout == "coordinate" else (header.entries, 1)
    banner = f"%%MatrixMarket matrix {header.layout} {header.field} general\n{' '.join(map(str, sizes))}\n"
    try:
        A = _mmread(io.BytesIO(b"".join((banner.encode(), body, b"\n"))))
    except (ValueError, OverflowError, MemoryError):
        return None
    none = np.empty(0, np.int32)
    rows, columns, data = (A.row, A.col, A.data) if header.layout == "coordinate" else (none, none, A[:, 0])
    if data.dtype != DTYPES[header.field]:
        data = data.astype(DTYPES[header.field])
    if np.isinf(data).any() and not INFINITE.search(raw, header.start):
        return None  # beyond the range of float64
    return rows, columns, data


def _mmread(text: io.BytesIO):
    try:
        from fast_matrix_market import mmread
    except ImportError:
        from scipy.io import mmread
    return mmread(text)


# ---------------------------------------------------------------- the careful way


def _careful(raw: bytes, header: Header, where: str):
    """Triplets, line by line; refuses by line number whatever can be doubted."""
    width, found, extra, overflow = header.indices + header.values, 0, 0, 0
    m, n = header.shape
    rows, columns = array("q"), array("q")
    data: array[Any] = array("q" if header.field == "integer" else "d")
    extra_line = overflow_line = 0
    places = (m, rows, "row"), (n, columns, "column")
    number = header.line
    for _, number, line in _numbered_lines(raw, header.start, header.line):
        tokens = line.split(b"%", 1)[0].split()
        if not tokens:
            continue
        found += 1
        if found > header.entries:
            _refuse(where, number, f"more lines than the {header.entries} entries that the size line promises")
        if len(tokens) < width:
            _refuse(where, number, f"{_shown(line)} has {len(tokens)} numbers; a {header.field} entry has {width}")
        if len(tokens) > width:
            extra += 1
            extra_line = extra_line or number
        for token, (size, indices, what) in zip(tokens[: header.indices], places, strict=False):
            if not INTEGER.fullmatch(token):
                _refuse(where, number, f"{what} index {_shown(token)}; expected an integer from 1 to {size}")
            index = int(token) if len(token) < 25 else 0
            if not 1 <= index <= size:
                hint = " (indices count from 1)" if index == 0 else ""
                _refuse(where, number, f"{what} index {_shown(token)}; expected 1 to {size}{hint}")
            indices.append(index - 1)
        for token in tokens[header.indices : width]:
            if header.field == "integer":
                if not INTEGER.fullmatch(token):
                    _refuse(where, number, f"value {_shown(token)}; the banner promises integers")
                if len(token) > 25 or not -(2**63) <= int(token) < 2**63:
                    _refuse(where, number, f"value {_shown(token)} does not fit 64 bits; declare the field real")
                data.append(int(token))
            else:
                if not REAL.fullmatch(token):
                    _refuse(where, number, f"value {_shown(token)}; expected a {header.field} number")
                value = float(token.translate(bytes.maketrans(b"Dd", b"Ee")))
                if value in (np.inf, -np.inf) and b"n" not in token.lower():
                    overflow += 1
                    overflow_line = overflow_line or number
                data.append(value)
    if found < header.entries:
        _refuse(where, number, f"the file ends after {found} of the {header.entries} entries of its size line")
    if extra:
        warnings.warn(
            f"{where}: {extra} lines have more than {width} numbers (first: line {extra_line}); the rest was ignored",
            stacklevel=2,
        )
    if overflow:
        warnings.warn(
            f"{where}: {overflow} values are beyond the range of float64 (first: line {overflow_line}) and became "
            "infinite",
            stacklevel=2,
        )
    values = np.ones(found) if header.field == "pattern" else np.array(data)
    if header.field == "complex":
        values = values.view(np.complex128)
    return np.array(rows), np.zeros(len(rows), np.int64) if header.vector else np.array(columns), values


def _numbered_lines(raw: bytes, start: int, number: int):
    """(byte where it starts, its number, the line with its newline) of each line from `start`."""
    while start < len(raw):
        end = raw.find(b"\n", start) + 1 or len(raw)
        yield start, number, raw[start:end]
        start, number = end, number + 1


def _shown(text: bytes) -> str:
    """A piece of the file, short and printable."""
    text = text.strip()
    return repr(text[:40].decode("latin-1")) + ("..." if len(text) > 40 else "")


def _refuse(where: str, line: int, message: str) -> NoReturn:
    raise SparsegenValueError(f"{where}, line {line}: {message}")
