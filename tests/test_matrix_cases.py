"""Real files: every matrix of a collection as its manifest says, and every odd file as its table says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from sparsegen import matrices
from sparsegen.errors import SparsegenValueError


def test_odd_file(matrix_case: dict[str, str]) -> None:
    path = Path(matrix_case["folder"]) / matrix_case["file"]
    expected = matrix_case["expected"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if expected == "error":
            with pytest.raises(SparsegenValueError, match=re.escape(path.name)):
                matrices.load(path)
            return
        if not expected[0].isdigit():  # read without doubt, or one clear error
            try:
                matrices.load(path)
            except SparsegenValueError as error:
                assert path.name in str(error) and "\n" not in str(error)
            return
        A, info = matrices.load(path), matrices.info(path)
    shape, *nnz = re.findall(r"\d+x\d+|(?<=nnz )\d+", expected)
    assert f"{A.shape[0]}x{A.shape[1]}" == shape == f"{info.rows}x{info.cols}"
    if nnz:  # counted before duplicates are summed
        assert int(nnz[0]) == (info.nnz if info.symmetry == "general" else A.nnz)


def test_file_of_the_manifest(manifest_row: dict[str, str]) -> None:
    path = Path(manifest_row["folder"]) / manifest_row["file"]
    A, info = matrices.load(path), matrices.info(path)
    assert A.format == "csr" and A.has_canonical_format
    assert A.shape == (info.rows, info.cols) == (int(manifest_row["rows"]), int(manifest_row["cols"]))
    assert (info.nnz, info.field, info.symmetry) == (
        int(manifest_row["nnz_stored"]), manifest_row["field"], manifest_row["symmetry"],
    )  # fmt: skip
    assert A.nnz == int(manifest_row["nnz_full"])
    lengths = np.diff(A.indptr)
    assert lengths.max() == int(manifest_row["row_max"])
    assert (lengths == 0).sum() == int(manifest_row["empty_rows"])
    mirror = {"symmetric": A.T, "skew-symmetric": -A.T, "hermitian": A.conj().T}.get(info.symmetry)
    if mirror is not None:
        assert (mirror.tocsr() != A).nnz == 0
