"""What is found on this machine, and what to install for what is not."""

from __future__ import annotations

import importlib.metadata
import platform

from sparsegen import bandwidth, baselines, cache, engine, proposers
from sparsegen.problem import Pattern, Problem
from sparsegen.targets import cpu


def examine() -> dict[str, object]:
    """Name -> what was found, or one sentence on how to get it."""
    import numpy as np
    import scipy
    import scipy.sparse as sp

    import sparsegen
    from sparsegen import nvrtc
    from sparsegen.targets import cuda, emulator

    found: dict[str, object] = {
        "sparsegen": sparsegen.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "cpu": cpu.device(),
        "threads": engine.allowed_threads(),
        "cpu target": cpu.available() or "kernels can be compiled and run",
    }
    compiler = cpu.compiler()
    if compiler is not None:
        found["compiler"] = compiler.version.splitlines()[0]
    if cpu.available() is None:
        for threads in sorted({1, engine.allowed_threads()}):
            rates = [f"{each.name} {each.bytes_per_s / 1e9:.3g}" for each in bandwidth.levels(threads)]
            found[f"GB/s, {threads} thread(s)"] = ", ".join(rates)
    found["NVRTC"] = nvrtc.available() or f"{nvrtc.version()}: {', '.join(nvrtc.archs())}"
    found["CUDA architectures"] = _reach() if nvrtc.available() is None else "none: NVRTC is missing"
    found["GPU"] = cuda.available() or cuda.device()
    found["CUDA emulator"] = emulator.available() or "CUDA kernels can be executed without a GPU"
    problem = Problem("spmv", Pattern.of(sp.csr_array(np.eye(3))))
    for name in baselines.names():
        found[f"baseline {name}"] = baselines.get(name).available(problem) or _version(name)
    model = proposers.checkpoint_of("auto")
    found["model"] = f"templates alone: {model}" if isinstance(model, str) else model.path.name
    info = cache.info()
    used = sum(info[kind]["bytes"] for kind in cache.KINDS)
    state = "" if info["writable"] else "; it cannot be written, so nothing is kept: set SPARSEGEN_CACHE_DIR"
    found["cache"] = f"{info['folder']}, {used} bytes of {info['limit']}{state}"
    return found


def _reach() -> str:
    """The architectures that kernels can be compiled for, and how to reach older ones."""
    from sparsegen import nvrtc
    from sparsegen.targets import cuda

    known = nvrtc.archs()
    older = "" if cuda.within(known[0], "sm_70") else f"; a V100 (sm_70) and others as old: {cuda.OLDER}"
    return f"{known[0]} to {known[-1]}{older}"


def _version(name: str) -> str:
    for package in (name, name.split("_")[0]):
        try:
            return f"found, version {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "found"
