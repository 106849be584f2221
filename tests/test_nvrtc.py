"""The fenced compiler: results, failures as values, and a caller that survives what its sources do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparsegen import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))

KERNELS = Path(__file__).parent / "kernels"
HOSTILE = sorted((KERNELS / "hostile").glob("*.cu"))
ONE = 'extern "C" __global__ void f(float* y) { y[threadIdx.x] += 1; }'
SLOW = "\n".join(["#define S0 + 1", *(f"#define S{i} S{i - 1} S{i - 1}" for i in range(1, 34))])
SLOW += '\nextern "C" __global__ void f(int* p) { *p = 0 S33; }'
NOT_ATTACKS = {  # refused by the screen for what they may do when they run: they compile in bounded time
    "rawstr", "carriage_return", "deep_blocks", "deep_parentheses", "file_macro", "global_asm", "has_include",
    "has_include_next", "huge_token", "kept_state", "kept_state_braces", "kept_state_namespace", "kept_state_static",
    "pragma_operator", "unroll_big",
}  # fmt: skip


def read(path: Path) -> str:
    return path.read_bytes().decode()


def test_cubin_and_ptx():
    image = nvrtc.compile(ONE, "sm_90")
    assert image.data[:4] == b"\x7fELF" and image.log == ""
    assert set(image.resources) == {"f"}
    assert image.resources["f"]["registers"] > 0 and image.resources["f"]["spill_bytes"] == 0
    ptx = nvrtc.compile(ONE, "sm_90", kind="ptx", options=["-lineinfo"])
    assert b".target sm_90" in ptx.data and b".loc" in ptx.data and b"\0" not in ptx.data and ptx.resources == {}


def test_resources_are_the_compilers():
    source = (
        'extern "C" __global__ void f(float* y) { __shared__ float s[77]; s[threadIdx.x] = y[threadIdx.x];'
        " __syncthreads(); y[threadIdx.x] = s[76 - threadIdx.x]; }\n"
        'extern "C" __global__ void g(float* y) { *y = 1; }'
    )
    resources = nvrtc.compile(source, "sm_80").resources
    assert resources["f"]["shared_bytes"] == 308 and resources["g"]["shared_bytes"] == 0


def test_archs_and_version():
    assert {"sm_80", "sm_90", "sm_100"} <= set(nvrtc.archs())
    assert nvrtc.version().split(".")[0].isdigit()
    for bad in ("native", "sm_90;", "compute_90", "-arch=sm_90"):
        with pytest.raises(ValueError, match="arch"):
            nvrtc.compile(ONE, bad)


def test_errors_name_lines_of_the_kernel():
    with pytest.raises(nvrtc.CompileFailure) as caught:
        nvrtc.compile(ONE.replace("threadIdx", "threadldx") + "\n", "sm_90")
    assert caught.value.fault == "error"
    assert "kernel(1): error" in caught.value.log and "threadldx" in caught.value.log


def test_log_lines_of_other_files_are_dropped():
    log = (
        "kernel(3): error: no\n  int x = y;\n          ^\n\n/etc/passwd(1): error: no\n  root:x:0:0\n  ^\n"
        "kernel(4): error: no\n  root:x:0:0\nptxas info    : fine\nptxas fatal   : bad\n"
    )
    kept = nvrtc.clean(log, "int x = y;\n")
    assert "root" not in kept and "/etc" not in kept and "fine" not in kept
    assert "int x = y;" in kept and "kernel(4)" in kept and "ptxas fatal" in kept


def test_nothing_of_the_host_can_be_opened():
    own = Path(nvrtc.__file__)
    for name in ("/etc/passwd", "/dev/stdin", str(own), "cuda_runtime.h", "../../etc/hostname"):
        with pytest.raises(nvrtc.CompileFailure, match="cannot open source file"):
            nvrtc.compile(f'#include "{name}"\n{ONE}', "sm_90")
    there = f'#if __has_include("{own}")\n#error it sees files\n#endif\n{ONE}'
    assert nvrtc.compile(there, "sm_90").data


def test_half_precision_headers():
    image = nvrtc.compile(read(KERNELS / "good" / "half_spmv.cu"), "sm_90")
    assert image.resources["spmv"]["registers"] > 0


def test_timeout_ends_the_worker_and_the_next_job_starts_another():
    nvrtc.compile(ONE, "sm_90")
    before = nvrtc._worker.pid
    with pytest.raises(nvrtc.CompileFailure) as caught:
        nvrtc.compile(SLOW, "sm_90", timeout_s=0.5)
    assert caught.value.fault == "time"
    with pytest.raises(ProcessLookupError):  # ended, and collected: no zombie
        os.kill(before, 0)
    assert nvrtc.compile(ONE, "sm_90").data and nvrtc._worker.pid != before


def test_memory_limit():
    with pytest.raises(nvrtc.CompileFailure) as caught:
        nvrtc.compile(SLOW, "sm_90", memory_bytes=400 << 20, timeout_s=60.0)
    assert caught.value.fault == "memory"
    assert nvrtc.compile(ONE, "sm_90").data


def test_one_worker_serves_many_jobs_and_a_killed_one_is_replaced():
    nvrtc.compile(ONE, "sm_90")
    first = nvrtc._worker.pid
    with pytest.raises(nvrtc.CompileFailure):
        nvrtc.compile("?", "sm_90")
    nvrtc.compile(ONE, "sm_80")
    assert nvrtc._worker.pid == first
    nvrtc._worker.kill()
    nvrtc._worker.wait()
    assert nvrtc.compile(ONE, "sm_90").data
    assert nvrtc._worker.pid != first


def test_threads_share_the_worker():
    sources = [ONE.replace("1;", f"{i};") for i in range(7, 23)]
    alone = [nvrtc.compile(source, "sm_90").data for source in sources]
    found: dict[int, bytes] = {}

    def work(i: int) -> None:
        found[i] = nvrtc.compile(sources[i], "sm_90").data

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(sources))] == alone
    assert len(set(alone)) == len(alone)


def test_after_a_fork_each_has_its_own_worker():
    nvrtc.compile(ONE, "sm_90")
    own = nvrtc._worker.pid
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            good = nvrtc.compile(ONE, "sm_90").data[:4] == b"\x7fELF" and nvrtc._worker.pid != own
            os.write(write_end, b"y" if good else b"n")
            nvrtc._stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    assert os.read(read_end, 1) == b"y"
    os.close(read_end)
    assert nvrtc.compile(ONE, "sm_90").data and nvrtc._worker.pid == own


def test_the_worker_ends_with_its_caller_however_that_ends():
    program = (
        "import os; from sparsegen import nvrtc; nvrtc.available(); print(nvrtc._worker.pid, flush=True); os._exit(3)"
    )
    root = Path(nvrtc.__file__).parent.parent
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60)
    worker = Path("/proc") / said.stdout.strip()
    assert said.returncode == 3 and said.stdout.strip().isdigit()
    for _ in range(200):
        if not worker.exists() or b"nvrtc" not in (worker / "cmdline").read_bytes():
            return
        threading.Event().wait(0.05)
    pytest.fail("the worker outlived its caller")


def test_the_worker_loads_nothing_heavy():
    program = "import sys; from sparsegen import nvrtc; print([m for m in sys.modules if m.split('.')[0] in ('cuda',)])"
    root = Path(nvrtc.__file__).parent.parent
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60)
    assert said.stdout.strip() == "[]"
    mapped = Path(f"/proc/{nvrtc._worker.pid}/maps").read_text() if nvrtc.compile(ONE, "sm_90") else ""
    assert "libnvrtc" in mapped and "numpy" not in mapped and "scipy" not in mapped


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "//\0\n" + ONE, "é" * 9])
def test_strange_texts(text):
    """An empty unit compiles to no entry; what is no text is refused."""
    try:
        assert nvrtc.compile(text, "sm_90").resources == {}
    except nvrtc.CompileFailure as failure:
        assert failure.fault == "error"


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_hostile_sources_meet_the_fence_alone(path):
    """Without the screen: within the limits, nothing of the host in the message, and the caller lives."""
    try:
        nvrtc.compile(read(path), "sm_90", timeout_s=2.0 if "bomb" in path.stem else 30.0, memory_bytes=700 << 20)
        assert path.stem in NOT_ATTACKS
    except nvrtc.CompileFailure as failure:
        assert path.stem not in NOT_ATTACKS
        assert_tells_nothing(failure.log)
    assert not Path("executed").exists()


def assert_tells_nothing(message: str) -> None:
    for secret in ("/etc/passwd", "/etc/hostname"):
        lines = (
            [line for line in Path(secret).read_text().splitlines() if len(line) > 8] if os.path.exists(secret) else []
        )
        assert not any(line in message for line in lines)
    assert str(Path(nvrtc.__file__).parent) not in message and "site-packages" not in message
    assert len(message) < 5000


@pytest.mark.parametrize("path", sorted((KERNELS / "good").glob("*.cu")), ids=lambda path: path.stem)
def test_good_sources_compile(path):
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert nvrtc.compile(read(path), arch).resources


@pytest.mark.parametrize("path", sorted((KERNELS / "faulty").glob("*.cu")), ids=lambda path: path.stem)
def test_faulty_sources_compile_but_a_call_of_the_host(path):
    """Their faults show when they run; only a call of a host function is the compiler's to refuse."""
    if path.stem.startswith("syscall"):
        with pytest.raises(nvrtc.CompileFailure, match="host function"):
            nvrtc.compile(read(path), "sm_90")
    else:
        assert nvrtc.compile(read(path), "sm_90", kind="ptx", options=["-lineinfo"]).data
