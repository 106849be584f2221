"""Harwell-Boeing (Duff, Grimes & Lewis, 1989) and Rutherford-Boeing (1997): assembled matrices by columns.

Both are Fortran card images: four or five header lines, then column pointers, row indices and values in fields of
fixed width. Unassembled (elemental) matrices and auxiliary files are refused; right-hand sides are not read.
"""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np

from sparsegen.canonical import checked_compressed
from sparsegen.errors import SparsegenValueError
from sparsegen.readers.stored import Stored, from_entries

FORMAT = re.compile(r"\(\s*(?:[+-]?\d+\s*P\s*,?\s*)?(\d*)\s*([IFEDG])\s*(\d+)\s*(?:\.\s*\d+)?\s*(?:E\d+)?\s*\)", re.I)
REAL = re.compile(r"([+-]?(?:\d+\.\d*|\.\d+|\d+(?=[EDed+-])))(?:[EDed]?([+-]\d+)|[EDed](\d+))?")
FIELDS = {"R": "real", "C": "complex", "P": "pattern", "I": "integer"}
SYMMETRIES = {"U": "general", "R": "general", "S": "symmetric", "H": "hermitian", "Z": "skew-symmetric"}


def read(raw: bytes, where: str) -> Stored:
    """The matrix of Harwell-Boeing or Rutherford-Boeing text `raw`. Raises SparsegenValueError with the line."""
    lines = raw.decode("latin-1").replace("\r\n", "\n").split("\n")
    if len(lines) < 4:
        _refuse(where, len(lines), "the file ends inside its header of four lines")
    cards = _integers(lines[1].split(), 4, where, 2, "numbers of lines")
    kind = lines[2][:3].upper()
    if len(kind) < 3 or kind[0] not in FIELDS or kind[1] not in SYMMETRIES or kind[2] not in "AE":
        _refuse(where, 3, f"matrix type {lines[2][:3]!r}; expected three letters such as RUA, PSA or CHA")
    if kind[2] == "E":
        _refuse(where, 3, f"matrix type {lines[2][:3]!r} is unassembled (elemental); only assembled ones can be read")
    field, symmetry = FIELDS[kind[0]], SYMMETRIES[kind[1]]
    m, n, nnz = _integers(lines[2][3:].split(), 3, where, 3, "rows, columns and entries")[:3]
    start = 5 if len(cards) > 4 and cards[4] > 0 else 4
    count = {"pattern": 0, "complex": 2 * nnz}.get(field, nnz)
    sections = []
    for at, (what, expected, declared) in enumerate(
        (("column pointer", n + 1, cards[1]), ("row index", nnz, cards[2]), ("value", count, cards[3]))
    ):
        code = lines[3][(0, 16, 32)[at] : (16, 32, 52)[at]]
        if not expected:
            sections.append(np.empty(0, np.int64))
            continue
        section = _section(lines, start, code, expected, declared, what, field == "real" or field == "complex", where)
        sections.append(section)
        start += declared
    indptr, indices, data = sections
    if field == "pattern":
        data = np.ones(nnz)
    elif field != "integer":
        data = data.astype(np.float64).view(np.complex128 if field == "complex" else np.float64)
    if indptr[-1] != nnz + 1:
        _refuse(where, 4 + len(lines[:0]), f"the last column pointer is {indptr[-1]}; {nnz} entries need {nnz + 1}")
    try:
        checked_compressed(indptr - 1, indices - 1, data, (n, m), row="column", column="row")
    except SparsegenValueError as error:
        raise SparsegenValueError(f"{where}: {error} (0-based)") from None
    columns = np.repeat(np.arange(n), np.diff(indptr))
    return from_entries(indices - 1, columns, data, (m, n), field, symmetry, where)


def _section(lines, start, code, expected, declared, what, real, where) -> np.ndarray:
    """`expected` numbers in Fortran format `code` on the `declared` lines from `start`."""
    match = FORMAT.fullmatch(code.strip())
    if match is None:
        _refuse(where, 4, f"format {code.strip()!r}; expected one such as (16I5) or (4E20.12)")
    per_line, letter, width = int(match[1] or 1), match[2].upper(), int(match[3])
    if not per_line or not width or (letter != "I" and (what != "value" or not real)):
        _refuse(where, 4, f"format {code.strip()!r} cannot hold the {what} fields")
    if declared != -(-expected // per_line):
        _refuse(where, 2, f"{declared} lines of {what} fields; {expected} in format {code.strip()} take {-(-expected // per_line)}")
    if start + declared > len(lines):
        _refuse(where, len(lines), f"the file ends within the {what} fields")
    numbers: list = []
    read_one = _real if letter != "I" else int
    for at in range(start, start + declared):
        line, wanted = lines[at], min(per_line, expected - len(numbers))
        fields = [line[i * width : (i + 1) * width].strip() for i in range(wanted)]
        try:
            if "_" in line:
                raise ValueError
            numbers += [read_one(text) for text in fields]
        except ValueError:
            bad = next((i for i, text in enumerate(fields) if not _valid(read_one, text)), 0)
            _refuse(where, at + 1, f"{fields[bad]!r} in columns {bad * width + 1}..{(bad + 1) * width}; expected a {what}")
    try:
        return np.array(numbers, dtype=np.float64 if letter != "I" else np.int64)
    except OverflowError:
        _refuse(where, start + 1, f"a {what} beyond 64 bits")


def _real(text: str) -> float:
    """A Fortran real: the exponent letter may be D, or missing before a sign. A dot or an exponent is needed,
    since without either the format's implied decimals may or may not be meant."""
    match = REAL.fullmatch(text)
    if match is None:
        if text.lower().lstrip("+-") in ("nan", "inf", "infinity") or text.lstrip("+-").strip("0") == "" and text:
            return float(text)
        raise ValueError
    return float(f"{match[1]}e{match[2] or match[3] or 0}")


def _valid(read_one, text: str) -> bool:
    try:
        read_one(text)
    except ValueError:
        return False
    return "_" not in text


def _integers(words: list[str], least: int, where: str, line: int, what: str) -> list[int]:
    if len(words) < least - (line == 2) or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words[:5]):
        _refuse(where, line, f"{' '.join(words)[:60]!r}; expected at least {least} non-negative integers ({what})")
    return [int(word) for word in words] + [0] * (least - len(words))


def _refuse(where: str, line: int, message: str) -> NoReturn:
    raise SparsegenValueError(f"{where}, line {line}: {message}")
