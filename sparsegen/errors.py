"""The one exception of the package. A user's mistake is this; a candidate's failure is a `Verdict`."""

from __future__ import annotations


class SparsegenError(Exception):
    """A mistake in the call or its input: says what was got, what was expected, and what to do."""


class SparsegenValueError(SparsegenError, ValueError):
    """A value, shape, file content or option that cannot be used."""


class SparsegenTypeError(SparsegenError, TypeError):
    """An object or dtype of a kind that cannot be used."""


def sentence(error: BaseException) -> str:
    """What went wrong, for a person: of the system's errors the file and the reason, no number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
