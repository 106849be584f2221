"""CUDA source -> CUBIN or PTX with NVRTC, in a fenced worker process. Needs neither a GPU nor a driver.

A source may attack its compiler: include files of the host, loop, or ask for more memory than there is. So the
compiler runs apart, with limits on memory, processor time and wall time, and once it is loaded it can open no file at
all: the two headers of half precision reach it as text. A failed job costs at most its worker, and the next one starts
another. Nothing of the package is imported there; this file is its script.

Not covered: what the compiled kernel does when it runs.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

MEMORY_BYTES = 2 << 30  # of address space; a usual job takes a tenth of it
MOST_STACK = 1 << 19  # bytes of local memory that a thread can have
MOST_SHARED = 48 << 10  # of declared shared memory; ptxas overlooks arrays of 2 GiB
FP_HEADERS = ("cuda_fp16.h", "cuda_bf16.h")
_START_S = 60.0
_MOST_REPLY = 1 << 28
_MOST_LOG = 4000


@dataclass(frozen=True)
class Image:
    """A compiled kernel. resources: entry -> registers, shared_bytes, stack_bytes, spill_bytes (CUBIN only)."""

    data: bytes
    log: str
    resources: dict[str, dict[str, int]] = field(default_factory=dict)


class CompileFailure(Exception):
    """The source did not compile. fault: "error" (the compiler says why in log), "time", "memory" or "crash"."""

    def __init__(self, fault: str, log: str):
        super().__init__(log)
        self.fault, self.log = fault, log


@functools.cache
def available() -> str | None:
    """None when NVRTC can be used, else one sentence why not and how to get it."""
    try:
        _hello()
    except CompileFailure as failure:
        return f"NVRTC cannot be used ({failure.log}); pip install sparsegen[cuda]"
    return None


def version() -> str:
    """Of NVRTC, such as "13.0"; for cache keys."""
    return _hello()["version"]


def archs() -> list[str]:
    """What `compile` takes: "sm_80", "sm_90", ..."""
    return _hello()["archs"]


def flags(arch: str, kind: str = "cubin") -> list[str]:
    """The compiler's options for `arch`; for cache keys."""
    if kind == "ptx":
        return [f"-arch={arch.replace('sm_', 'compute_')}", "--std=c++17"]
    return [f"-arch={arch}", "--std=c++17", "--ptxas-options=-v"]


def compile(
    source: str,
    arch: str,
    *,
    kind: str = "cubin",
    options: Sequence[str] = (),
    timeout_s: float = 20.0,
    memory_bytes: int = MEMORY_BYTES,
) -> Image:
    """Compile one translation unit for `arch` ("sm_90"). Raises CompileFailure; its log never shows a host's file.

    The half-precision headers can be included; any other #include fails, as there is no file to open.
    """
    if kind not in ("cubin", "ptx"):
        raise ValueError(f"kind = {kind!r}; expected 'cubin' or 'ptx'")
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise ValueError(f"arch = {arch!r}; expected a name such as 'sm_90'")
    if "\0" in source or any(0xD800 <= ord(letter) < 0xE000 for letter in source):
        raise CompileFailure("error", "the source holds characters that are no text")
    every = [*flags(arch, kind), *options]
    job = {"source": source, "kind": kind, "flags": every, "cpu_s": timeout_s, "memory_bytes": memory_bytes}
    answer, data = _ask(job, timeout_s)
    log = clean(answer["log"], source)
    if answer["fault"]:
        raise CompileFailure(answer["fault"], log or "the compiler refused the source and gave no line of it")
    resources = _resources(answer["log"])
    for entry, used in resources.items():
        for what, most in (("stack_bytes", MOST_STACK), ("shared_bytes", MOST_SHARED)):
            if used[what] > most:
                raise CompileFailure("error", f"{entry} uses {used[what]} {what.replace('_', ' ')}; a GPU has {most}")
    return Image(data, log, resources)


def clean(log: str, source: str) -> str:
    """The lines of a compiler's log about the kernel's own file, each quote only if it is the source's text."""
    kept, own = [], False
    for line in log.splitlines():
        if line[:1].isspace():
            text = line.strip()
            if own and text and (set(text) <= set("^~") or text in source):
                kept.append(line[:200])
            elif "ptxas error" in line:
                kept.append(text[:200])
        else:
            own = bool(re.match(r"kernel\(\d+\): |ptxas (?:error|fatal|application)", line))
            if own:
                kept.append(line[:300])
    return "\n".join(kept)[:_MOST_LOG]


def _resources(log: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for part in log.split("Compiling entry function '")[1:]:
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers, shared = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes smem", part)
        found[part.split("'")[0]] = {
            "registers": int(registers[1]) if registers else 0,
            "shared_bytes": int(shared[1]) if shared else 0,
            "stack_bytes": int(stack[1]) if stack else 0,
            "spill_bytes": int(stack[2]) + int(stack[3]) if stack else 0,
        }
    return found


# The caller's side: one warm worker, started when first needed and again whenever a job has cost its life.

_lock = threading.Lock()
_worker: subprocess.Popen | None = None
_greeting: dict | None = None


def _hello() -> dict:
    """What the compiler says of itself. Raises CompileFailure when it cannot be loaded."""
    with _lock:
        return _greeting or _start()


def _ask(job: dict, timeout_s: float) -> tuple[dict, bytes]:
    with _lock:
        try:
            try:
                if _worker is None:
                    _start()
                _send(_pipes(_worker)[0], job, timeout_s)
            except OSError:  # it died while it was idle
                _stop()
                _start()
                _send(_pipes(_worker)[0], job, timeout_s)
            answer, data = _receive(_pipes(_worker)[1], timeout_s)
        except TimeoutError:
            _stop()
            raise CompileFailure("time", f"the compiler took longer than {timeout_s:g} s") from None
        except (EOFError, OSError):
            status = _stop()
            if status == -signal.SIGXCPU:
                raise CompileFailure("time", f"the compiler took longer than {timeout_s:g} s") from None
            fault = "memory" if status == -signal.SIGABRT else "crash"
            message = f"the compiler died, as it does beyond its {job['memory_bytes'] >> 20} MiB of memory"
            raise CompileFailure(fault, message) from None
        except BaseException:  # an interrupt: the answer would be taken for that of the next job
            _stop()
            raise
        if answer["fault"] not in (None, "error"):
            _stop()
        return answer, data


def _start() -> dict:
    global _worker, _greeting
    _worker = subprocess.Popen(  # -P: the folder of this file is not a place to import from
        [sys.executable, "-P", os.path.abspath(__file__)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, cwd="/",
        start_new_session=True,
    )  # fmt: skip
    try:
        greeting, _ = _receive(_pipes(_worker)[1], _START_S)
    except (TimeoutError, EOFError):
        greeting = {"reason": "its process does not start"}
    except BaseException:
        _stop()
        raise
    if "reason" in greeting:
        _stop()
        raise CompileFailure("crash", greeting["reason"])
    _greeting = greeting
    return greeting


def _stop() -> int | None:
    """End the worker and collect it. Its exit status: that of its own death, if it came first."""
    global _worker
    worker, _worker = _worker, None
    if worker is None:
        return None
    try:  # one that has hung up is about to end, of its own death
        worker.wait(1.0 if _ready(_pipes(worker)[1], select.POLLIN, time.monotonic()) else 0)
    except subprocess.TimeoutExpired:
        worker.kill()
    status = worker.wait()
    _close(worker)
    return status


def _close(worker: subprocess.Popen) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            pipe.close()


def _pipes(worker: subprocess.Popen | None) -> tuple[int, int]:
    assert worker and worker.stdin and worker.stdout
    return worker.stdin.fileno(), worker.stdout.fileno()


def _forget() -> None:
    """In a forked child: the worker is the parent's."""
    global _lock, _worker
    _lock = threading.Lock()
    if _worker is not None:
        _close(_worker)
        _worker.returncode = 0  # not ours to wait for
        _worker = None


def _ready(pipe: int, event: int, deadline: float | None) -> bool:
    """Whether the pipe can be read or written before the deadline."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1e3))


def _send(pipe: int, header: dict, timeout_s: float | None = None, blob: bytes = b"") -> None:
    text = json.dumps(header).encode()
    message = memoryview(struct.pack("<II", len(text), len(blob)) + text + blob)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while message:
        if not _ready(pipe, select.POLLOUT, deadline):
            raise TimeoutError
        message = message[os.write(pipe, message[:4096]) :]  # a ready pipe takes this much without blocking


def _receive(pipe: int, timeout_s: float | None = None) -> tuple[dict, bytes]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def read(count: int) -> bytes:
        if count > _MOST_REPLY:
            raise EOFError
        parts = []
        while count:
            if not _ready(pipe, select.POLLIN, deadline):
                raise TimeoutError
            part = os.read(pipe, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    header, blob = struct.unpack("<II", read(8))
    return json.loads(read(header)), read(blob)


# The worker's side.


def _serve() -> None:
    import resource

    requests, replies = 3, 4
    os.dup2(0, requests)
    os.dup2(1, replies)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(5, 1024)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from cuda.bindings import nvrtc

        headers = _headers()
        (_, major, minor), (_, supported) = nvrtc.nvrtcVersion(), nvrtc.nvrtcGetSupportedArchs()
        names = [f"sm_{arch}" for arch in supported]
        for source in ('extern "C" __global__ void f(float* y) { *y = 1; }', "?"):  # loads what is loaded late
            _job(nvrtc, headers, {"source": source, "kind": "cubin", "flags": [f"-arch={names[0]}"]})
    except Exception as error:  # no package, no library, a library of another version
        _send(replies, {"reason": str(error).split("\n")[0][:200]})
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))  # 0 to 4 are taken: from here on nothing can be opened
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _send(replies, {"version": f"{major}.{minor}", "archs": names})
    while True:
        try:
            job, _ = _receive(requests)
        except EOFError:  # the caller has ended
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime + job["cpu_s"]) + 2
        _limit(resource.RLIMIT_CPU, spent)
        _limit(resource.RLIMIT_AS, job["memory_bytes"])
        try:
            answer, data = _job(nvrtc, headers, job)
        except MemoryError:
            answer, data = {"fault": "memory", "log": ""}, b""
        _limit(resource.RLIMIT_AS, None)
        _send(replies, answer, blob=data)


def _limit(kind: int, soft: int | None) -> None:
    """Set a limit of this process, below the one it was started with; None: to that."""
    import resource

    hard = resource.getrlimit(kind)[1]
    inherited = hard != resource.RLIM_INFINITY
    wanted = hard if soft is None else min(soft, hard) if inherited else soft
    resource.setrlimit(kind, (wanted, hard))


def _headers() -> dict[str, bytes]:
    """The half-precision headers and what they include, as far as the runtime's wheel is there."""
    from cuda import pathfinder

    folder, found, wanted = pathfinder.find_nvidia_header_directory("cudart"), {}, list(FP_HEADERS)
    while folder and wanted:
        name = wanted.pop()
        path = os.path.join(folder, name)
        if name not in found and os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = file.read()
            included = re.findall(rb'^\s*#\s*include\s*[<"]([\w./]+)[>"]', found[name], re.MULTILINE)
            wanted += [each.decode() for each in included]
    return found


def _job(nvrtc, headers: dict[str, bytes], job: dict) -> tuple[dict, bytes]:
    used = headers if any(name in job["source"] for name in FP_HEADERS) else {}
    names = [name.encode() for name in used]
    _, program = nvrtc.nvrtcCreateProgram(job["source"].encode(), b"kernel", len(used), list(used.values()), names)
    flags = [flag.encode() for flag in job["flags"]]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    fault, data = None, b""
    if result == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        cubin = job["kind"] == "cubin"
        _, size = (nvrtc.nvrtcGetCUBINSize if cubin else nvrtc.nvrtcGetPTXSize)(program)
        image = bytearray(size)
        (nvrtc.nvrtcGetCUBIN if cubin else nvrtc.nvrtcGetPTX)(program, image)
        data = bytes(image) if cubin else bytes(image).rstrip(b"\0")
    else:
        memory = result == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY or b"out of memory" in log
        refused = result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
        fault = "memory" if memory else "error" if refused else "crash"
    nvrtc.nvrtcDestroyProgram(program)
    return {"fault": fault, "log": log.replace(b"\0", b"").decode(errors="replace")[: 1 << 16]}, data


if __name__ == "__main__":
    _serve()
else:
    atexit.register(_stop)
    os.register_at_fork(after_in_child=_forget)
