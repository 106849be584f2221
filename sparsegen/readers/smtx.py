"""DLMC .smtx text (Gale, Elsen & Hooker, 2020): "rows, columns, nnz", row offsets, column indices; no values."""

from __future__ import annotations

import numpy as np

from sparsegen.canonical import from_compressed
from sparsegen.errors import SparsegenValueError
from sparsegen.readers.stored import Stored


def read(raw: bytes, where: str) -> Stored:
    """The pattern in `raw`, values 1.0. Raises SparsegenValueError naming `where` and the line."""
    numbers: list[int] = []
    sizes: list[int] | None = None
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(b"%"):
            continue
        tokens = (line.replace(b",", b" ") if sizes is None else line).split()
        try:
            if any(b"_" in token for token in tokens):
                raise ValueError
            found = [int(token) for token in tokens]
        except ValueError:
            bad = next((token for token in tokens if not token.lstrip(b"+-").isdigit()), line)
            raise SparsegenValueError(f"{where}, line {number}: {bad[:40]!r}; expected integers") from None
        if sizes is None:
            sizes = found
            if len(sizes) != 3 or min(sizes) < 0 or max(sizes) >= 2**63:
                raise SparsegenValueError(f"{where}, line {number}: {line[:40]!r}; expected 'rows, columns, nonzeros'")
        else:
            numbers += found
    if sizes is None:
        raise SparsegenValueError(f"{where}: no line 'rows, columns, nonzeros'")
    m, n, nnz = sizes
    if len(numbers) != m + 1 + nnz:
        raise SparsegenValueError(
            f"{where}: {len(numbers)} numbers after the size line; {m} rows and {nnz} nonzeros need {m + 1} offsets "
            f"and {nnz} column indices"
        )
    if numbers[m] != nnz:
        raise SparsegenValueError(f"{where}: the last row offset is {numbers[m]}; the size line says {nnz} nonzeros")
    try:
        table = np.array(numbers, dtype=np.int64)
    except OverflowError:
        raise SparsegenValueError(f"{where}: a number beyond 64 bits") from None
    return Stored(from_compressed(table[: m + 1], table[m + 1 :], np.ones(nnz), (m, n)), nnz, "pattern")
