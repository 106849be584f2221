"""Kernels and artifacts as files: A, the kernel file and the report, in numpy's archive format without pickles.

A saved kernel holds source, never a shared object: `load` screens, compiles and checks it as if it were new. Loading
one from a stranger means running their arithmetic behind our screen, on arrays this process packs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from sparsegen import baselines, candidate, paths
from sparsegen.canonical import from_compressed
from sparsegen.errors import SparsegenError, SparsegenValueError
from sparsegen.problem import Facts, Pattern, Problem

VERSION = 1
MOST_BYTES = 1 << 40  # of a saved kernel: A is in it


def save(thing, path) -> None:
    """Write a Kernel or an Artifact; an existing file, also behind a link, is replaced whole or not at all."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise SparsegenValueError(f"cannot write {path}: it is no regular file; expected the name of a file")
    blob = dumps(thing)
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise SparsegenValueError(f"cannot write {path}: {error.strerror}; expected a writable folder") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def load(path):
    """A Kernel or an Artifact from a file, screened, compiled and checked. Raises SparsegenValueError."""
    try:
        blob = paths.read(Path(path), MOST_BYTES)
    except OSError as error:
        raise SparsegenValueError(f"cannot read {path}: {error.strerror}; expected a file written by save()") from None
    return loads(blob, str(path))


def dumps(thing) -> bytes:
    """The bytes of a Kernel or an Artifact."""
    problem: Problem = thing.problem
    about = {
        "version": VERSION,
        "kind": "artifact" if hasattr(thing, "image") else "kernel",
        "kernel": thing.source,
        "name": thing.candidate.name if thing.candidate else "",
        "origin": thing.candidate.origin if thing.candidate else "",
        "baseline": getattr(thing, "baseline", ""),
        "threads": getattr(thing, "_threads", 1),
        "arch": getattr(thing, "arch", None),
        "report": thing.report().as_dict(),
        "options": {name: _plain(value) for name, value in _portable(getattr(thing, "options", {})).items()},
        "problem": {
            "op": problem.op, "facts": asdict(problem.facts), "dtype": problem.dtype.str, "k": problem.k,
            "layout_b": problem.layout_b, "layout_c": problem.layout_c, "threads": problem.threads,
            "deterministic": problem.deterministic, "target": problem.target, "device": problem.device,
        },
        "shape": problem.pattern.shape,
    }  # fmt: skip
    A = thing._A
    arrays = {"data": A.data, "indices": A.indices, "indptr": A.indptr}
    if hasattr(thing, "image"):
        arrays["image"] = np.frombuffer(thing.image, np.uint8)
    out = io.BytesIO()
    np.savez(out, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    return out.getvalue()


def loads(blob: bytes, name: str = "the saved kernel"):
    """What `dumps` wrote. Raises SparsegenError, mostly SparsegenValueError, for anything else."""
    if not zipfile.is_zipfile(io.BytesIO(blob)):
        raise SparsegenValueError(f"{name} is no saved kernel: it is not an archive; expected what save() wrote")
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            arrays = {each: file[each] for each in file.files if each != "about"}
        return _rebuilt(about, arrays, name)
    except SparsegenError:
        raise
    except Exception as error:  # whatever bytes that are damaged, or made up, lead to
        kind = type(error).__name__
        what = f"is no saved kernel, or a damaged one ({kind})"
        raise SparsegenValueError(f"{name} {what}; expected what save() wrote") from error


def _rebuilt(about: dict, arrays: dict[str, np.ndarray], name: str):
    from sparsegen import composite, values
    from sparsegen.artifact import Artifact
    from sparsegen.kernel import Kernel
    from sparsegen.targets import cpu

    if about["version"] != VERSION:
        raise SparsegenValueError(f"{name} has version {about['version']}; expected {VERSION}: save it again")
    A = from_compressed(arrays["indptr"], arrays["indices"], arrays["data"], about["shape"])
    spec = {**about["problem"], "facts": Facts(**about["problem"]["facts"])}
    spec["dtype"] = np.dtype(spec["dtype"])
    problem = Problem(pattern=Pattern.of(A), **spec)
    options = {each: _rich(value) for each, value in about["options"].items()}
    if broken := problem.facts.broken_by(A.data):
        raise SparsegenValueError(f"{name} declares {' and '.join(broken)}, which its values are not")
    chosen, baseline, notes = None, about["baseline"], []
    if about["kernel"]:
        chosen = replace(candidate.parse(about["kernel"], name=about["name"]), origin=about["origin"])
    if chosen is not None and about["kind"] == "artifact":
        return Artifact(A, problem, chosen, arrays["image"].tobytes(), about["arch"], about["report"])
    if chosen is not None and (reason := cpu.available()):
        notes.append(f"scipy serves: {reason}")
        chosen, baseline = None, "scipy"
    if chosen is not None:
        reason = values.feasible(chosen.encoding, problem) or composite.feasible(chosen, problem)
        if reason:
            raise SparsegenValueError(f"{name} holds the kernel {chosen.label}, which cannot hold its matrix: {reason}")
    if chosen is None and (reason := baselines.get(baseline).available(problem)):
        notes.append(f"scipy serves: {reason}")
        baseline = "scipy"
    if problem.target == "cpu" and problem.device != cpu.device():
        notes.append(f"measured on {problem.device}; not measured here")
    try:
        kernel = Kernel(A, problem, chosen, baseline, about["report"], int(about["threads"]), options)
    except cpu.CompileFailure as error:
        raise SparsegenValueError(f"{name} does not compile here: {error}; compile its matrix again") from None
    if about["kernel"] and chosen is None:
        kernel._report = kernel._report.unmeasured(None, baseline)
    kernel._report = kernel._report.noted(notes)
    return kernel


def _portable(options: Mapping) -> dict:
    """Without the folder of a checkpoint, which says nothing on another machine."""
    elsewhere = {} if options.get("model") in (None, "auto", "none") else {"model": "auto"}
    return {**options, **elsewhere}


def _plain(value):
    return {"facts": asdict(value)} if isinstance(value, Facts) else str(np.dtype(value)) if _is_dtype(value) else value


def _is_dtype(value) -> bool:
    return isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))


def _rich(value):
    return Facts(**value["facts"]) if isinstance(value, dict) else value
