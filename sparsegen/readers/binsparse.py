"""Binsparse: a JSON descriptor and one array each of pointers, indices and values, in an HDF5 file.

Version 0.1 of the Binary Sparse Format Specification (https://graphblas.org/binsparse-specification/): CSR, CSC and
coordinates, complex values, one value for all (iso), one triangle of a symmetric matrix.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsegen.canonical import from_columns, from_compressed
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.readers.stored import FIELDS, Stored, from_entries

HEADER = "binsparse"  # the attribute of the file, and the key in its JSON
VERSION = "0.1.0"  # in three numbers, which readers of today ask for; those of before take any
ALIGNMENT = 64  # bytes, of each array in the file
NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
TYPES = {name: np.dtype(name) for name in NAMES}
STRUCTURES = {"symmetric": "symmetric", "hermitian": "hermitian", "skew_symmetric": "skew-symmetric"}
COORDINATES = {"COO": (0, 1), "COOR": (0, 1), "COOC": (1, 0)}  # which indices are the rows, which the columns


def sniff(raw: bytes) -> bool:
    """Whether an HDF5 file is one of these: its descriptor is a text near the beginning or, written late, anywhere."""
    return raw.startswith(b"\x89HDF") and b'"binsparse"' in raw


def read(raw: bytes, where: str) -> Stored:
    """The matrix in the bytes of a binsparse file. Raises SparsegenValueError."""
    import h5py

    try:
        with h5py.File(io.BytesIO(raw), "r") as file:
            return _matrix(file, where)
    except SparsegenError:
        raise
    except Exception as error:  # h5py raises what it likes
        raise SparsegenValueError(
            f"{where}: damaged, or not a binsparse file ({type(error).__name__}: {error})"
        ) from error


def descriptor(file: Any) -> dict[str, Any]:
    """The JSON of an open h5py.File: the description under "binsparse", and what its writer put beside it."""
    text = file.attrs[HEADER]
    found = json.loads(text.decode() if isinstance(text, bytes) else text)
    if not isinstance(found, dict) or not isinstance(found.get(HEADER), dict):
        raise SparsegenValueError(f"the attribute {HEADER!r} holds no JSON object of that name")
    return found


def write(path: Path, A: sp.csr_array | sp.coo_array, beside: dict[str, Any]) -> None:
    """Write canonical A to `path`: CSR, or COOR where A is a coo_array; `beside` goes into the JSON, under its keys.

    The file is laid out first and its arrays are then written as plain bytes at their places, so that a full disk is
    an OSError and never a broken HDF5 library. float16, which the format lacks, is widened to float32.
    """
    import h5py

    parts = _parts(A)
    types = {name: _type(array.dtype) for name, array in parts.items()}
    about = {
        "version": VERSION, "format": "CSR" if A.format == "csr" else "COOR", "shape": [int(size) for size in A.shape],
        "number_of_stored_values": int(A.nnz), "data_types": types,
    }  # fmt: skip
    raw = {name: _plain(array) for name, array in parts.items()}
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    places = {}
    with h5py.File(path, "w", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        file.attrs[HEADER] = json.dumps({**beside, HEADER: about})
        for name, array in raw.items():
            made = file.create_dataset(name, array.shape, array.dtype, dcpl=early)
            places[name] = made.id.get_offset()
    with open(path, "r+b") as plain:
        for name, array in raw.items():
            if array.size:
                plain.seek(places[name])
                plain.write(array.data.cast("B"))


def arrays(file: Any, buffer: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The descriptor of an open h5py.File and its arrays as views of `buffer`, the file's bytes (uint8)."""
    about = descriptor(file)
    found = {}
    for name, kind in about[HEADER]["data_types"].items():
        made = file[name]
        count, place = int(made.size), made.id.get_offset()
        if count and (place is None or place + count * made.dtype.itemsize > len(buffer)):
            raise SparsegenValueError(f"the array {name} is not stored in one piece")
        dtype = made.dtype.newbyteorder("=") if made.dtype.isnative else made.dtype  # h5py says "<" where "=" is meant
        view = np.ndarray(count, dtype, buffer, place) if count else np.empty(0, dtype)
        found[name] = _decoded(view, kind, count)
    return about, found


def _parts(A: sp.csr_array | sp.coo_array) -> dict[str, np.ndarray]:
    data = A.data.astype(np.float32) if A.dtype == np.float16 else A.data
    if A.format == "csr":
        return {"pointers_to_1": A.indptr, "indices_1": A.indices, "values": data}
    order = np.lexsort((A.col, A.row))
    return {"indices_0": A.row[order], "indices_1": A.col[order], "values": data[order]}


def _type(dtype: np.dtype) -> str:
    if dtype.kind == "b":
        return "bint8"
    if dtype.kind == "c":
        return f"complex[float{dtype.itemsize * 4}]"
    return dtype.name


def _plain(array: np.ndarray) -> np.ndarray:
    """The same bytes in a dtype that HDF5 files have."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    return array.view(f"f{array.dtype.itemsize // 2}") if array.dtype.kind == "c" else array


def _decoded(array: np.ndarray, kind: str, count: int) -> np.ndarray:
    """What a stored array means, as its type says; `count` elements where it is one value for all."""
    modified = re.fullmatch(r"(iso|complex)\[(.*)\]", kind)
    if modified is None:
        if kind == "bint8":
            return array != 0
        if kind not in TYPES:
            raise SparsegenValueError(f"values of type {kind!r}; expected one of {', '.join(TYPES)} or bint8")
        return array.astype(TYPES[kind], copy=False)
    if modified[1] == "iso":
        return np.repeat(_decoded(array, modified[2], 1), count)
    parts = _decoded(array, modified[2], len(array))
    if parts.dtype.kind != "f" or len(parts) % 2:
        raise SparsegenValueError(f"{len(parts)} values of type {kind}; expected pairs of float32 or float64")
    return np.ascontiguousarray(parts).view(f"c{parts.dtype.itemsize * 2}")


def _matrix(file: Any, where: str) -> Stored:
    about = descriptor(file)[HEADER]
    form, count = about["format"], int(about["number_of_stored_values"])
    if not isinstance(about["shape"], list) or len(about["shape"]) != 2:
        raise SparsegenValueError(f"{where}: an array of shape {about['shape']}; expected a matrix")
    shape = (int(about["shape"][0]), int(about["shape"][1]))
    base = int(about.get("index_base", 0))
    held = file["indices_1"].size if "indices_1" in file else count  # coordinates and compressed formats all have these
    if count != held:
        raise SparsegenValueError(f"{where}: {count} stored values, says its description, for {held} indices")

    def part(name: str) -> np.ndarray:
        return _decoded(file[name][()].ravel(), about["data_types"][name], count)

    if about.get("fill") and not (_decoded(file["fill_value"][()].ravel(), about["data_types"]["fill_value"], 1) == 0):
        raise SparsegenValueError(f"{where}: what is not stored has another value than zero")
    data = part("values")
    structure = about.get("structure", "general")
    symmetry = STRUCTURES.get(re.sub("_(lower|upper)$", "", structure), "general")
    if structure != "general" and symmetry == "general":
        raise SparsegenValueError(f"{where}: structure {structure!r}; expected symmetric_lower and the like")
    field = FIELDS[data.dtype.kind]
    if form in COORDINATES:
        row, column = COORDINATES[form]
        rows, columns = part(f"indices_{row}") - base, part(f"indices_{column}") - base
    elif form in ("CSR", "CSC"):
        indptr, indices = part("pointers_to_1") - base, part("indices_1") - base
        made = from_compressed if form == "CSR" else from_columns
        A = made(indptr, indices, data, shape)
        if symmetry == "general":
            return Stored(A, count, field)
        B = A.tocoo()
        rows, columns, data = B.row, B.col, B.data
    else:
        known = ", ".join(("CSR", "CSC", *COORDINATES))
        raise SparsegenValueError(f"{where}: a binsparse file of format {form!r}; expected one of {known}")
    return from_entries(rows, columns, data, shape, field, symmetry, where)
