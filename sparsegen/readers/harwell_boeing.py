"""Harwell-Boeing (Duff, Grimes & Lewis, 1989) and Rutherford-Boeing (1997): assembled matrices by columns.

Both are Fortran card images: four or five header lines, then column pointers, row indices and values in fields of
fixed width. Unassembled (elemental) matrices and auxiliary files are refused; right-hand sides are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from sparsegen.canonical import checked_compressed
from sparsegen.errors import SparsegenValueError
from sparsegen.readers.stored import Stored, from_entries

FORMAT = re.compile(r"\(\s*(?:([+-]?\d+)\s*P\s*,?\s*)?(\d*)\s*([IFEDG])\s*(\d+)\s*(?:\.\s*\d+)?\s*(?:E\d+)?\s*\)", re.I)
INTEGER = re.compile(r"[+-]?\d+")
REAL = re.compile(r"([+-]?(?:\d+\.\d*|\.\d+|\d+(?=[ED+-])))(?:[ED]?([+-]\d+)|[ED](\d+))?", re.I)
EXACT = re.compile(r"[+-]?(?:0+|nan|inf|infinity)", re.I)  # the same whatever decimals a format implies
FIELDS = {"R": "real", "C": "complex", "P": "pattern", "I": "integer"}
SYMMETRIES = {"U": "general", "R": "general", "S": "symmetric", "H": "hermitian", "Z": "skew-symmetric"}


@dataclass(frozen=True)
class Format:
    """A Fortran edit descriptor such as (16I5) or (1P,4E20.12)."""

    text: str
    per_line: int
    real: bool
    width: int
    scale: int


def read(raw: bytes, where: str) -> Stored:
    """The matrix of Harwell-Boeing or Rutherford-Boeing text `raw`. Raises SparsegenValueError with the line."""
    lines = raw.decode("latin-1").replace("\r", "").split("\n")
    if len(lines) < 4:
        _refuse(where, len(lines), "the file ends inside its header of four lines")
    cards = [*_sizes(lines[1], 3, "numbers of lines", where, 2), 0]
    kind = lines[2][:3].upper()
    if len(kind) < 3 or kind[0] not in FIELDS or kind[1] not in SYMMETRIES or kind[2] not in "AE":
        _refuse(where, 3, f"matrix type {lines[2][:3]!r}; expected three letters such as RUA, PSA or CHA")
    if kind[2] == "E":
        _refuse(where, 3, f"matrix type {lines[2][:3]!r} is unassembled (elemental); only assembled ones can be read")
    field, symmetry = FIELDS[kind[0]], SYMMETRIES[kind[1]]
    m, n, nnz = _sizes(lines[2][3:], 3, "rows, columns and entries", where, 3)[:3]
    start = 5 if cards[4] > 0 else 4
    indptr = _section(lines, start, _format(lines[3][:16], False, where), n + 1, cards[1], "column pointer", where)
    start += cards[1]
    indices = _section(lines, start, _format(lines[3][16:32], False, where), nnz, cards[2], "row index", where)
    start += cards[2]
    if field == "pattern":
        data = np.ones(nnz)
    else:
        value_format = _format(lines[3][32:52], field != "integer", where)
        count = 2 * nnz if field == "complex" else nnz
        data = _section(lines, start, value_format, count, cards[3], "value", where)
        if field != "integer":
            data = data.astype(np.float64).view(np.complex128 if field == "complex" else np.float64)
    if indptr[-1] != nnz + 1:
        raise SparsegenValueError(f"{where}: the last column pointer is {indptr[-1]}; {nnz} entries need {nnz + 1}")
    try:
        checked_compressed(indptr - 1, indices - 1, data, (n, m), row="column", column="row")
    except SparsegenValueError as error:
        raise SparsegenValueError(f"{where}: {error} (all counted from 0)") from None
    columns = np.repeat(np.arange(n), np.diff(indptr))
    return from_entries(indices - 1, columns, data, (m, n), field, symmetry, where)


def _format(code: str, real: bool, where: str) -> Format:
    """A descriptor of integers, or of reals too where `real`."""
    match = FORMAT.fullmatch(code.strip())
    if match is None:
        _refuse(where, 4, f"format {code.strip()!r}; expected one such as (16I5) or (4E20.12)")
    found = Format(code.strip(), int(match[2] or 1), match[3].upper() != "I", int(match[4]), int(match[1] or 0))
    if not found.per_line or not found.width or (found.real and not real):
        _refuse(where, 4, f"format {found.text!r}; expected one of {'numbers' if real else 'integers'}")
    return found


def _section(
    lines: list[str], start: int, fields: Format, expected: int, declared: int, what: str, where: str
) -> np.ndarray:
    """`expected` numbers on the `declared` lines from `start` (which is line `start` + 1 of the file)."""
    needed = -(-expected // fields.per_line)
    if declared != needed:
        _refuse(where, 2, f"{declared} lines of {what} fields; {expected} in format {fields.text} take {needed}")
    if start + declared > len(lines):
        _refuse(where, len(lines), f"the file ends within the {what} fields")
    numbers: list = []
    for at in range(start, start + declared):
        count = min(fields.per_line, expected - len(numbers))
        texts = lines[at].split()
        if len(texts) != count:  # fields that touch; where all are apart, writers that misalign them are understood
            texts = [lines[at][i * fields.width : (i + 1) * fields.width].strip() for i in range(count)]
        for place, text in enumerate(texts, 1):
            try:
                numbers.append(_number(text, fields))
            except ValueError:
                _refuse(where, at + 1, f"{text!r} in field {place}; expected a {what} in format {fields.text}")
    try:
        return np.array(numbers, dtype=np.float64 if fields.real else np.int64)
    except OverflowError:
        raise SparsegenValueError(f"{where}: a {what} beyond 64 bits") from None


def _number(text: str, fields: Format) -> int | float:
    """A Fortran number; ValueError where it cannot be told.

    The exponent letter may be D, or missing before a sign. A real with neither dot nor exponent is scaled by the
    decimals of its format, and one with no exponent by its scale factor: what the writer meant is in doubt.
    """
    if not fields.real:
        if INTEGER.fullmatch(text) is None:
            raise ValueError
        return int(text)
    if EXACT.fullmatch(text):
        return float(text)
    match = REAL.fullmatch(text)
    if match is None or (fields.scale and not (match[2] or match[3])):
        raise ValueError
    return float(f"{match[1]}e{match[2] or match[3] or 0}")


def _sizes(line: str, least: int, what: str, where: str, number: int) -> list[int]:
    words = line.split()
    if len(words) < least or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words[:5]):
        _refuse(where, number, f"{line.strip()[:60]!r}; expected at least {least} non-negative integers ({what})")
    return [int(word) for word in words[:5]] + [0] * (4 - len(words))


def _refuse(where: str, line: int, message: str) -> NoReturn:
    raise SparsegenValueError(f"{where}, line {line}: {message}")
