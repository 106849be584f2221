"""Where the data folders are (in a checkout beside the package, in a wheel inside it), the cache, and the user's data.

The cache is made of what can be made again in seconds: it has a limit, and can be removed at any time. The home holds
what took a download or long parsing (matrices, their index): it has no limit, and only its owner removes anything.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

PACKAGE = Path(__file__).resolve().parent


def data(folder: str) -> Path:
    """The folder `cuda_templates`, `cpu_templates`, `matrices` or `models`."""
    packaged = PACKAGE / "_data" / folder
    return packaged if packaged.is_dir() else PACKAGE.parent / folder


def cache() -> Path:
    """The cache folder: `SPARSEGEN_CACHE_DIR`, else the platform's. Not created here."""
    chosen = os.environ.get("SPARSEGEN_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("sparsegen"))


def home() -> Path:
    """The folder of what users keep: `SPARSEGEN_HOME`, else the platform's for data. Not created here."""
    chosen = os.environ.get("SPARSEGEN_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("sparsegen"))
