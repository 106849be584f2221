"""Binsparse files, as its specification describes them and as others may write them."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from sparsegen import gallery, matrices
from sparsegen.errors import SparsegenError, SparsegenValueError

h5py = pytest.importorskip("h5py")


def written(path, about: dict, where: str = "binsparse", **options):
    """A file of arrays given as (type, values), with their description; `about` overrides it."""
    arrays = about.pop("arrays")
    types = {name: kind for name, (kind, _) in arrays.items()}
    described = {"version": "0.1", "data_types": types, **about}
    with h5py.File(path, "w") as file:
        for name, (_, values) in arrays.items():
            file.create_dataset(name, data=values, **options)
        file.attrs[where] = json.dumps({"binsparse": described, "author": "somebody"})
    return path


A = np.array([[0, 1.5, 0, 0], [2, 0, 0, -3], [0, 0, 0, 0]])
FORMS = {
    "CSR": {"pointers_to_1": ("uint64", [0, 1, 3, 3]), "indices_1": ("uint32", [1, 0, 3])},
    "CSC": {"pointers_to_1": ("int64", [0, 1, 2, 2, 3]), "indices_1": ("uint8", [1, 0, 1])},
    "COO": {"indices_0": ("int32", [0, 1, 1]), "indices_1": ("int16", [1, 0, 3])},
    "COOR": {"indices_0": ("int32", [0, 1, 1]), "indices_1": ("uint16", [1, 0, 3])},
    "COOC": {"indices_0": ("int32", [0, 1, 3]), "indices_1": ("int8", [1, 0, 1])},
}
BY_COLUMN = ("CSC", "COOC")


def of(form: str, kind: str = "float64", values=(1.5, 2, -3), **more) -> dict:
    if form in BY_COLUMN and len(values) == 3:
        values = [values[1], values[0], values[2]]
    about = {"format": form, "shape": [3, 4], "number_of_stored_values": 3}
    return {**about, "arrays": {**FORMS[form], "values": (kind, np.array(values))}, **more}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_formats(tmp_path, form, options):
    B = matrices.load(written(tmp_path / "A.bsp.h5", of(form), **options))
    assert B.format == "csr" and B.dtype == np.float64 and B.has_canonical_format
    np.testing.assert_array_equal(B.toarray(), A)
    info = matrices.info(tmp_path / "A.bsp.h5")
    assert (info.rows, info.cols, info.nnz, info.field, info.symmetry) == (3, 4, 3, "real", "general")


@pytest.mark.parametrize("form", FORMS)
def test_ones_that_count_from_one(tmp_path, form):
    about = of(form, index_base=1)
    about["arrays"] |= {name: (kind, np.array(each) + 1) for name, (kind, each) in FORMS[form].items()}
    np.testing.assert_array_equal(matrices.load(written(tmp_path / "A.h5", about)).toarray(), A)


@pytest.mark.parametrize(
    ("kind", "stored", "values", "dtype"),
    [
        ("float32", np.array([1.5, 2, -3], "f4"), [1.5, 2, -3], np.float32),
        ("int8", np.array([1, 2, -3], "i1"), [1, 2, -3], np.int8),
        ("bint8", np.array([1, 0, 1], "u1"), [True, False, True], np.bool_),
        ("complex[float64]", np.array([1, 5, 2, 0, -3, 1.0]), [1 + 5j, 2, -3 + 1j], np.complex128),
        ("complex[float32]", np.array([1, 5, 2, 0, -3, 1], "f4"), [1 + 5j, 2, -3 + 1j], np.complex64),
        ("iso[int16]", np.array([7], "i2"), [7, 7, 7], np.int16),
        ("iso[complex[float64]]", np.array([1.0, 2.0]), [1 + 2j] * 3, np.complex128),
    ],
)
def test_types(tmp_path, kind, stored, values, dtype):
    B = matrices.load(written(tmp_path / "A.h5", of("CSR", kind, stored)))
    assert B.dtype == dtype and B.nnz == 3
    np.testing.assert_array_equal(B.data, values)


@pytest.mark.parametrize(
    ("structure", "form", "sign"),
    [("symmetric_lower", "CSR", 1), ("symmetric_upper", "CSC", 1), ("skew_symmetric_lower", "COO", -1)],
)
def test_one_triangle(tmp_path, structure, form, sign):
    """The symmetric example of the specification."""
    pointers, rows = [0, 0, 1, 2, 4, 5], [0, 2, 0, 1, 3]  # strictly below the diagonal, row after row
    places = np.repeat(np.arange(5), np.diff(pointers))
    lower = np.zeros((5, 5))
    lower[places, [0, 1, 0, 2, 3]] = [2, 9, 7, 4, 3]
    rows = [0, 1, 0, 2, 3]
    arrays = {"indices_1": ("int32", rows), "values": ("float64", [2.0, 9, 7, 4, 3])}
    arrays |= {"indices_0": ("int32", places)} if form == "COO" else {"pointers_to_1": ("int32", pointers)}
    about = {"format": form, "shape": [5, 5], "number_of_stored_values": 5, "structure": structure, "arrays": arrays}
    B = matrices.load(written(tmp_path / "A.h5", about))
    np.testing.assert_array_equal(B.toarray(), lower + sign * lower.T)
    assert matrices.info(tmp_path / "A.h5").symmetry == structure.rpartition("_")[0].replace("_", "-")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "DMAT"}, "format 'DMAT'; expected one of CSR"),
        ({"format": "custom"}, "format 'custom'"),
        ({"shape": [3]}, "expected a matrix"),
        ({"shape": [2, 4]}, "indptr has 4 elements"),
        ({"shape": [3, 3]}, "outside 0..2"),
        ({"number_of_stored_values": 10**15}, "for 3 indices"),
        ({"structure": "blocky"}, "structure 'blocky'"),
        ({"structure": "symmetric_lower"}, "must be square"),
        ({"data_types": {"pointers_to_1": "uint64", "indices_1": "uint32", "values": "float128"}}, "float128"),
        ({"data_types": {"pointers_to_1": "uint64", "indices_1": "uint32", "values": "complex[float64]"}}, "pairs"),
        ({"data_types": {}}, "damaged, or not a binsparse file"),
        ({"format": "COO"}, "damaged, or not a binsparse file"),
        ({"arrays": {**FORMS["CSR"], "values": ("float64", [1.0])}}, "data has only 1"),
    ],
)
def test_what_cannot_be_read(tmp_path, change, said):
    with pytest.raises(SparsegenValueError, match=said) as raised:
        matrices.load(written(tmp_path / "A.h5", of("CSR") | change))
    assert "A.h5" in str(raised.value)


def test_another_value_where_nothing_is_stored(tmp_path):
    for value in (0.0, 2.5):
        about = of("CSR", fill=True)
        about["arrays"]["fill_value"] = ("float64", [value])
        written(tmp_path / "A.h5", about)
        if value:
            with pytest.raises(SparsegenValueError, match="another value than zero"):
                matrices.load(tmp_path / "A.h5")
        else:
            np.testing.assert_array_equal(matrices.load(tmp_path / "A.h5").toarray(), A)


@pytest.mark.parametrize("text", ["", "[]", '{"binsparse": 5}', '{"binsparse": {}}', '"binsparse"'])
def test_descriptions_that_are_none(tmp_path, text):
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file.attrs["binsparse"] = text + ' "binsparse"' * (text == "")
    with pytest.raises(SparsegenValueError):
        matrices.load(tmp_path / "A.h5")


def test_damage_is_an_error_of_ours(tmp_path):
    raw = written(tmp_path / "A.h5", of("CSR")).read_bytes()
    rng = np.random.default_rng(7013)
    for place in rng.integers(8, len(raw), 60):
        (tmp_path / "B.h5").write_bytes(raw[:place] + bytes([raw[place] ^ rng.integers(1, 256)]) + raw[place + 1 :])
        try:
            matrices.load(tmp_path / "B.h5").toarray()
        except SparsegenError as error:
            assert "B.h5" in str(error)
    for count in (9, 600, len(raw) - 9):
        (tmp_path / "B.h5").write_bytes(raw[:count])
        with pytest.raises(SparsegenValueError, match=r"B\.h5"):
            matrices.load(tmp_path / "B.h5")


def test_files_of_the_store_are_matrix_files_even_compressed(tmp_path):
    import gzip

    from sparsegen.readers import binsparse

    B = gallery.circuit(211)
    binsparse.write(tmp_path / "A.h5", B, {"author": "me"})
    (tmp_path / "A.h5.gz").write_bytes(gzip.compress((tmp_path / "A.h5").read_bytes()))
    for name in ("A.h5", "A.h5.gz"):
        C = matrices.load(tmp_path / name)
        assert (B != C).nnz == 0 and C.nnz == B.nnz
    with h5py.File(io.BytesIO((tmp_path / "A.h5").read_bytes())) as file:
        assert json.loads(file.attrs["binsparse"])["author"] == "me"
