"""Where the data folders and the cache are: in a checkout beside the package, in a wheel inside it."""

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
