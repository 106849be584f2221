"""The .npz files of `scipy.sparse.save_npz`."""

from __future__ import annotations

import io
import zipfile

import scipy.sparse as sp

from sparsegen.canonical import from_scipy
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers.container import LIMIT
from sparsegen.readers.stored import FIELDS, Stored


def read(raw: bytes, where: str) -> Stored:
    """The sparse array in `raw`, of any format. Nothing is unpickled. Raises SparsegenValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LIMIT:
            raise SparsegenValueError(f"{where}: would expand to {size / 2**30:.1f} GiB")
        A = sp.load_npz(io.BytesIO(raw))
        stored = int(A.nnz)
    except SparsegenError:
        raise
    except Exception as error:  # zipfile, numpy and scipy each have their own
        raise SparsegenValueError(
            f"{where}: damaged, or not a file of scipy.sparse.save_npz ({type(error).__name__})"
        ) from error
    A = from_scipy(A)
    return Stored(A, stored, FIELDS[A.dtype.kind])
