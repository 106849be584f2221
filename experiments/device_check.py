"""All that a GPU has to show, in one command of under six minutes, without a network:

    python experiments/device_check.py [--seconds 330] [--out experiments/results/device_check] [--smoke]

1. checks      every CUDA template on a dozen matrices of different structure against SciPy's result, in both
               precisions, and bit for bit against the emulator where it adds without atomics (--fmad=false in both)
2. times       every template and every cuSPARSE algorithm on small and large matrices, hot and with a flushed L2:
               SpMV in float32 and float64, SpMM with 32 and 128 columns
3. variants    every instance of every SpMV template on a few of them: what calibrate.py fits the estimate to
4. calls       what a call costs in the user's process: a kernel, a CUDA graph of it, CuPy and PyTorch if asked for
5. the table   OUT.md, and OUT.json with all records and the state of the GPU

Kernels run in a worker: one that ends its context costs itself alone, and is written down. What there was no time for
is counted in the output, and a stage that fails is written down with its reason while the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import device_matrices
import numpy as np
import scipy.sparse as sp

from sparsegen import candidate as kernel_file
from sparsegen import checks, composite, device_arrays, engine, evaluate, fence, gpu, nvrtc, ptx, templates, values
from sparsegen.baselines import cusparse
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died, Session
from sparsegen.kernel import Kernel
from sparsegen.problem import Problem
from sparsegen.record import environment
from sparsegen.targets import cuda, emulator
from sparsegen.verdict import Level

HERE = Path(__file__).resolve().parent
SEED = 20260
SHARES = {"checks": 0.30, "times": 0.38, "variants": 0.27, "calls": 0.05}  # of the time
ROUNDS = 5
STRICT = "--fmad=false"
MOST_BITWISE = 400_000  # entries times columns that the emulator is asked for


class Run:
    """Its records, its clock, and what was left out."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.begun, self.until = options, time.monotonic(), 0.0
        self.found: dict = {"environment": environment(SEED), "records": [], "left_out": {}, "failed": {}, "calls": {}}
        self.modules = tuple(options.libraries)

    def stage(self, name: str, work: Callable[[Run], None]) -> None:
        """Run one stage until its share of the time is used up; a failure is written down."""
        done = sum(share for each, share in SHARES.items() if list(SHARES).index(each) <= list(SHARES).index(name))
        self.name, self.until = name, self.begun + done * self.options.seconds
        started = time.monotonic()
        self.found["left_out"][name] = 0
        try:
            work(self)
        except Exception as error:
            self.found["failed"][name] = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=6)}"
        self.found.setdefault("seconds", {})[name] = round(time.monotonic() - started, 1)
        self.say(f"{name}: {self.found['seconds'][name]} s, {self.found['left_out'][name]} left out")
        self.write()

    def late(self) -> bool:
        """Whether there is no time for one thing more, which is then counted."""
        if time.monotonic() < self.until:
            return False
        self.found["left_out"][self.name] += 1
        return True

    def keep(self, **record) -> None:
        self.found["records"].append({"stage": self.name, **record})

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", file=sys.stderr, flush=True)

    def write(self) -> None:
        path = Path(self.options.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.found, default=float, allow_nan=True).replace(', {"stage"', ',\n{"stage"')
        path.with_suffix(".json").write_text(text + "\n")
        path.with_suffix(".md").write_text(table(self.found))


def main(arguments: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--out", default=str(HERE / "results" / "device_check"), help="without an ending")
    parser.add_argument("--libraries", nargs="*", default=[], choices=["torch", "cupy"], help="to time beside cuSPARSE")
    parser.add_argument("--smoke", action="store_true", help="two tiny matrices")
    options = parser.parse_args(arguments)
    for library in options.libraries:
        __import__(library)
    if reason := cuda.available():
        raise SystemExit(f"no GPU can be used: {reason}")
    run = Run(options)
    device = gpu.get(gpu.chosen())
    run.found["gpu"] = {
        "name": device.name, "arch": device.arch, "driver": device.driver, "l2_bytes": device.l2_bytes,
        "multiprocessors": device.multiprocessors, "nvrtc": nvrtc.version(), "before": gpu.state(device),
    }  # fmt: skip
    run.say(f"{device}, NVRTC {nvrtc.version()}")
    for name, work in (("checks", check), ("times", times), ("variants", variants), ("calls", calls)):
        run.stage(name, work)
    run.found["gpu"]["after"] = gpu.state(device)
    run.found["gpu"]["notes"] = gpu.notes(run.found["gpu"]["before"], run.found["gpu"]["after"])
    run.found["total_seconds"] = round(time.monotonic() - run.begun, 1)
    run.write()
    print(table(run.found))
    return run.found


# ---- 1


def check(run: Run) -> None:
    """Every template, another of its instances on each matrix, so that a dozen matrices see most of them."""
    names = list(device_matrices.TINY if run.options.smoke else device_matrices.SMALL)
    for number, name in enumerate(names):
        A = device_matrices.get(name)
        for op, k, dtype in (
            ("spmv", None, "float64"), ("spmv", None, "float32"), ("spmm", 7, "float64"), ("spmm", 32, "float32"),
        ):  # fmt: skip
            if run.late():
                continue
            own = A.astype(dtype)
            problem = engine.problem_of(own, op=op, k=k, facts=None, target="cuda")
            references = checks.References(problem)
            with fence.session(problem, own, run.modules) as session:
                for template in (each for each in templates.load("cuda") if each.op == op):
                    all_of_it = [each for each in kernel_file.instances(template) if each.encoding == "full"]
                    chosen = all_of_it[number % len(all_of_it)]
                    if not run.late():
                        about = {"matrix": name, "op": op, "dtype": dtype, "k": problem.k, "kernel": chosen.label}
                        run.keep(**about, **_checked(chosen, problem, own, session, references))


def _checked(chosen: Candidate, problem: Problem, A: sp.csr_array, session: Session, references) -> dict:
    verdict = evaluate.evaluate(chosen, problem, session, references, "kernel")
    found = {"level": verdict.level.name, "fault": verdict.fault, "message": verdict.message, "worst": verdict.worst}
    found["bitwise"] = None
    if verdict.level >= Level.CORRECT:
        try:
            found["bitwise"] = _bitwise(chosen, problem, A, session)
        except (Died, SparsegenError, nvrtc.CompileFailure) as error:
            found["bitwise"] = f"not compared: {error}"
        session.ask("drop", 30.0, names=["kernel", "strict", "strict arm"])
    return found


def _bitwise(chosen: Candidate, problem: Problem, A: sp.csr_array, session: Session) -> str:
    """Whether the GPU and the emulator agree bit for bit, both without contraction."""
    if chosen.atomic:
        return "not compared: atomic additions come in any order"
    if reason := ptx.available():
        return f"not compared: {reason}"
    if A.nnz * problem.k > MOST_BITWISE:
        return "not compared: too large for the emulator's share of the time"
    packs = composite.pack(chosen, problem)
    text = cuda.unit(chosen, problem, packs)
    arch = cuda.resolve(None, problem.ordinal)
    image = nvrtc.compile(text, arch, options=[STRICT]).data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        cuda.keep(path, image)
        session.ask("load", 60.0, name="strict", text=kernel_file.text(chosen), path=str(path), label="strict")
    session.ask("arm", 60.0, name="strict arm", bound="strict", threads=1)
    session.ask("fetch", 60.0, arm="strict arm", which=0)
    plain = nvrtc.compile(text, emulator.ARCH, kind="ptx", options=["-lineinfo", STRICT]).data.decode()
    arrays = [
        {**each.arrays, "data": np.array(values.encode(chosen.encoding, A.data, each, problem.dtype))} for each in packs
    ]
    plan = emulator.bind(plain, chosen, replace(problem, target="emulator"), packs, arrays)
    x = checks.timed_inputs(problem)[0]
    y = np.full(session.output.shape, np.nan, problem.dtype, order=problem.order_c)
    plan.run(x, y)
    bits = f"u{problem.dtype.itemsize}"
    one, other = (np.ascontiguousarray(each).view(bits) for each in (session.output, y))
    differing = int((one != other).sum())
    return "equal" if not differing else f"{differing} of {one.size} elements differ"


# ---- 2 and 3


def times(run: Run) -> None:
    """One instance of each template, the likeliest by rule, and every algorithm of cuSPARSE."""
    every = {**device_matrices.SMALL, **device_matrices.LARGE}
    names = list(device_matrices.TINY if run.options.smoke else every)
    large = [name for name in names if name in device_matrices.LARGE]
    small = [name for name in names if name not in large]
    mixed = [name for pair in zip(large, small, strict=False) for name in pair]  # no kind is left out whole
    mixed += [name for name in names if name not in mixed]
    wide = [name for name in mixed if name in device_matrices.WIDE or run.options.smoke]
    plan = [("spmv", None, "float64", mixed), ("spmm", 32, "float32", wide), ("spmv", None, "float32", mixed)]
    plan += [("spmm", 128, "float32", wide), ("spmm", 32, "float64", wide)]
    for op, k, dtype, which in plan:
        for name in which:
            if not run.late():
                _timed_matrix(run, name, op, k, dtype, _likeliest)


def variants(run: Run) -> None:
    """All instances of the SpMV templates."""
    names = list(device_matrices.TINY)[-1:] if run.options.smoke else device_matrices.VARIED
    for dtype in ("float64",) if run.options.smoke else ("float64", "float32"):
        for name in names:
            if not run.late():
                _timed_matrix(run, name, "spmv", None, dtype, templates.propose, libraries=False)


def _likeliest(problem: Problem) -> Iterator[Candidate]:
    seen: set[str] = set()
    for each in templates.propose(problem):
        if each.name not in seen:
            seen.add(each.name)
            yield each


def _timed_matrix(
    run: Run, name: str, op: str, k: int | None, dtype: str, proposed: Callable, libraries: bool = True
) -> None:
    A = device_matrices.get(name).astype(dtype)
    problem = engine.problem_of(A, op=op, k=k, facts=None, target="cuda")
    references, timed = checks.References(problem), checks.TimedReferences(problem, A)
    about = {"matrix": name, "op": op, "dtype": dtype, "k": problem.k, "nnz": int(A.nnz)}
    with fence.session(problem, A, run.modules) as session:
        if libraries:
            for way in cusparse.arms(A, problem):
                if not run.late():
                    run.keep(**about, kernel=f"cuSPARSE {way}", **_timed_library(session, "cusparse", way))
            for library in run.modules:
                run.keep(**about, kernel=library, **_timed_library(session, library, ""))
        for each in proposed(problem):
            if not run.late():
                source = {"name": each.name, "params": dict(each.params)}
                found = _timed_kernel(each, problem, session, references, timed)
                run.keep(**about, kernel=each.label, **source, **found)


def _timed_kernel(
    each: Candidate, problem: Problem, session: Session, references: checks.References, timed: checks.TimedReferences
) -> dict:
    """Compiled, run on integers, whose sums are exact, timed, and looked at once more."""
    made = evaluate.refuse(each, problem) or evaluate.compile(each, problem)
    if isinstance(made, evaluate.Compiled):
        try:
            text, seconds = kernel_file.text(each), 30.0 + evaluate.seconds(problem)
            packed = session.ask("load", seconds, name="kernel", text=text, path=str(made.path), label=each.label)
            first = checks.CHECKS[0]
            answer = session.ask("check", seconds, name="kernel", check=first, threads=1)
            worst = references.worst(first, session.output)
            if not (answer.get("intact") and answer.get("unchanged") and answer.get("status") == 0 and worst <= 1):
                session.ask("drop", 30.0, names=["kernel"])
                return {"fault": "wrong", "message": f"worst {worst:.3g}, {answer}"}
            session.ask("arm", seconds, name="arm", bound="kernel", threads=1)
            found = {**_measured(session, "arm"), "packed_bytes": packed["packed_bytes"]}
            why = evaluate.disbelieved(session, timed, each, "arm", found.pop("changed"), seconds)
            session.ask("drop", 30.0, names=["arm", "kernel"])
            return {**found, "fault": "wrong", "message": why} if why else found
        except Died as error:
            return {"fault": error.fault, "message": str(error)}
    return {"fault": made.fault, "message": made.message}


def _timed_library(session: Session, name: str, way: str) -> dict:
    try:
        answer = session.ask("baseline", 60.0, name=name, **({"way": way} if way else {}))
        if "refused" in answer:
            return {"fault": "refused", "message": answer["refused"]}
        found = {**_measured(session, name), "prepare_ms": answer["prepare_ms"]}
        session.ask("drop", 30.0, names=[name])
        return {**found, **({"chosen": answer["chosen"]} if "chosen" in answer else {})}
    except Died as error:
        return {"fault": error.fault, "message": str(error)}


def _measured(session: Session, arm: str) -> dict:
    rounds = session.ask("rounds", 60.0, arms=[arm], count=ROUNDS, most_seconds=2.0, seed=SEED)
    hot = [each[arm] / 1e3 for each in rounds["rounds"]]
    cold = session.ask("cold", 60.0, arms=[arm])["cold_ns"][arm] / 1e3
    spread = {"hot_us": float(np.median(hot)), "hot_least_us": min(hot), "hot_most_us": max(hot), "cold_us": cold}
    state = rounds["states"][-1] if rounds["states"] else {}
    kept = {name: state[name] for name in ("sm_mhz", "temperature_c", "slowed_by") if state.get(name)}
    return {**spread, "state": kept, "changed": rounds["changed"]}


# ---- 4


def calls(run: Run) -> None:
    """Microseconds of the host for one call on arrays that lie on the GPU: what a loop of a user pays at least."""
    A = device_matrices.get("tiny_graph").astype(np.float64)
    problem = engine.problem_of(A, facts=None, target="cuda")
    device = gpu.get(gpu.chosen())
    problem = replace(problem, device=str(device), ordinal=device.ordinal)
    chosen = next(each for each in templates.propose(problem) if each.name == "csr_vector")
    kernel = Kernel(A, problem, chosen, "scipy", {"notes": []})
    device.enter()
    x, y = (device_arrays.DeviceArray(device, (size,), A.dtype) for size in (A.shape[1], A.shape[0]))
    x.set(np.ones(A.shape[1]))
    there, out, host = device_arrays.seen(x), device_arrays.seen(y), np.ones(A.shape[1])
    plan = kernel._binding.plan(1, problem.layout_b, problem.layout_c)
    graph = kernel.graph(x, y)
    ways: dict[str, Callable] = {
        "kernel(x, out=y)": lambda: kernel(x, out=y),
        "kernel @ x": lambda: kernel @ x,
        "plan(x, y), looked at before": lambda: plan(there, out),
        "plan.queue": lambda: plan.queue(there.address, out.address, 1.0, 0.0, 0),
        "graph()": graph,
        "kernel @ numpy": lambda: kernel @ host,
    }
    if "cupy" in run.modules:
        import cupy
        import cupyx.scipy.sparse

        B, v = cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(A)), cupy.ones(A.shape[1])
        ways |= {"cupy: A @ x": lambda: B @ v, "cupy: kernel @ x": lambda: kernel @ v}
    if "torch" in run.modules:
        import torch

        v2 = torch.ones(A.shape[1], dtype=torch.float64, device="cuda")
        ways |= {"torch: kernel @ x": lambda: kernel @ v2}
    for name, way in ways.items():
        try:
            run.found["calls"][name] = _per_call(way, 3 if run.options.smoke else 300)
        except Exception as error:  # a library that is not as expected costs its own line
            run.found["calls"][name] = f"{type(error).__name__}: {error}"
    np.testing.assert_allclose(y.get(), A @ np.ones(A.shape[1]))


def _per_call(call: Callable, count: int, repeats: int = 7) -> float:
    """The median over bursts that fit the queue of launches; the GPU is waited for between them."""
    taken = []
    for _ in range(repeats):
        call()
        gpu.ask(gpu.driver().cuStreamSynchronize(0))
        begun = time.perf_counter_ns()
        for _ in range(count):
            call()
        taken.append((time.perf_counter_ns() - begun) / count / 1e3)
        gpu.ask(gpu.driver().cuStreamSynchronize(0))
    return float(np.median(taken))


# ---- 5


def table(found: dict) -> str:
    """What was found, in Markdown."""
    about, records = found.get("gpu", {}), found["records"]
    lines = [
        f"{about.get('name')}, {about.get('arch')}, driver for CUDA {about.get('driver')}, NVRTC {about.get('nvrtc')}; "
        f"commit {found['environment']['commit']}, seed {SEED}, {found.get('total_seconds', '?')} s",
        f"state before {about.get('before')}, after {about.get('after')}",
        *about.get("notes", []), "", "## Checks", "",
    ]  # fmt: skip
    checked = [each for each in records if each["stage"] == "checks"]
    right = [each for each in checked if each["level"] in ("CORRECT", "TIMED")]
    refused = [each for each in checked if each["fault"] == "infeasible"]
    equal = [each for each in right if each["bitwise"] == "equal"]
    apart = [each for each in right if "differ" in str(each["bitwise"])]
    lines += [
        f"{len(checked)} pairs of kernel and matrix: {len(right)} right, {len(refused)} whose format is not for the "
        f"matrix, {len(checked) - len(right) - len(refused)} wrong. Against the emulator: {len(equal)} bitwise equal, "
        f"{len(apart)} not, {len(right) - len(equal) - len(apart)} not compared.",
    ]
    wrong = [each for each in checked if each not in right and each not in refused]
    for each in [*wrong, *apart][:40]:
        what = each["fault"] or each["bitwise"]
        where = f"{each['matrix']} ({each['op']}, {each['dtype']})"
        lines.append(f"- {each['kernel']} on {where}: {what} {each['message']}")
    for stage, head in (("times", "Times"), ("variants", "Variants")):
        lines += ["", f"## {head}", ""]
        timed = [each for each in records if each["stage"] == stage]
        heads = ("problem", "nnz", "best library", "best kernel", "gain hot", "gain cold", "failed")
        lines += ["hot / cold us", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for key in dict.fromkeys((each["op"], each["k"], each["dtype"], each["matrix"]) for each in timed):
            own = [each for each in timed if (each["op"], each["k"], each["dtype"], each["matrix"]) == key]
            lines.append(_row(key, own))
    lines += ["", "## Calls", "", "us of the host", ""]
    for name, cost in found["calls"].items():
        lines.append(f"- {name}: {cost:.2f}" if isinstance(cost, float) else f"- {name}: {cost}")
    lines += ["", f"left out for want of time: {found['left_out']}; seconds: {found.get('seconds')}"]
    lines += [f"failed: {name}: {why}" for name, why in found["failed"].items()]
    return "\n".join([*lines, ""])


def _row(key: tuple, own: list[dict]) -> str:
    op, k, dtype, matrix = key
    good = [each for each in own if "hot_us" in each and not each.get("fault")]
    library = [each for each in good if "name" not in each]
    kernels = [each for each in good if "name" in each]
    cells = []
    for group in (library, kernels):
        best = min(group, key=lambda each: each["hot_us"], default=None)
        cold = min((each["cold_us"] for each in group), default=0.0)
        cells.append(f"{best['hot_us']:.2f} / {cold:.2f} {best['kernel']}" if best else "-")
    gains = ["-", "-"]
    if library and kernels:
        gains = [
            f"{min(each[which] for each in library) / max(min(each[which] for each in kernels), 1e-9):.2f}"
            for which in ("hot_us", "cold_us")
        ]
    what = f"{op} {dtype} {matrix}" + (f" k={k}" if op == "spmm" else "")
    failed = sum(1 for each in own if each.get("fault") and each["fault"] not in ("refused", "infeasible"))
    return f"| {what} | {own[0]['nnz']} | {cells[0]} | {cells[1]} | {gains[0]} | {gains[1]} | {failed} |"


if __name__ == "__main__":
    main()
