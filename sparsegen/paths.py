"""Where the data folders, the cache and the user's data are, and safe reading.

The data folders lie beside the package in a checkout, inside it in a wheel.
The cache is made of what can be made again in seconds: it has a limit, and can be removed at any time. The home holds
what took a download or long parsing (matrices, their index): it has no limit, and only its owner removes anything.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from sparsegen.errors import SparsegenValueError

PACKAGE = Path(__file__).resolve().parent


def data(folder: str) -> Path:
    """The folder `cuda_templates`, `cpu_templates`, `matrices` or `models`."""
    packaged = PACKAGE / "_data" / folder
    return packaged if packaged.is_dir() else PACKAGE.parent / folder


def read(path: Path, most: int) -> bytes:
    """All of a file that somebody else may have made. Raises SparsegenValueError when it is no regular file (a pipe
    would wait, a device never ends) or has more than `most` bytes, OSError where it cannot be read."""
    try:
        status = path.stat()
    except ValueError as error:
        raise SparsegenValueError(f"{str(path)!r} is no path: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise SparsegenValueError(f"{path} is no regular file; expected one")
    if status.st_size > most:
        raise SparsegenValueError(f"{path} has {status.st_size} bytes; expected at most {most}")
    with open(path, "rb") as file:
        return file.read(status.st_size)  # not up to an end: files of /proc say 0, and some wait for more


def cache() -> Path:
    """The cache folder: `SPARSEGEN_CACHE_DIR`, else the platform's. Not created here."""
    chosen = os.environ.get("SPARSEGEN_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("sparsegen"))


def home() -> Path:
    """The folder of what users keep: `SPARSEGEN_HOME`, else the platform's for data. Not created here."""
    chosen = os.environ.get("SPARSEGEN_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("sparsegen"))
