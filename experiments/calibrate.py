"""Do measured times bear out the estimate, and what constants fit them? From the records of device_check.py:

    python experiments/calibrate.py [--records experiments/results/device_check.json] [--gpu H200] [--write] [--smoke]

Each kernel that was timed is executed once more in the emulator, on the same matrix, for the parts of its estimate.
Then factors of the parts, the start of a launch and the share of what does not bind are fitted to
log(estimate/measured) by least squares, drawn to no change where the records say nothing. Judged on matrices left out
in turn: the rms, and how many pairs of instances of one kernel are ordered rightly. --write puts the fit where
estimates take it from (sparsegen/ptx/fitted.toml), with what it was fitted to.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import device_matrices
import numpy as np
from scipy.optimize import minimize

from sparsegen import candidate, checks, composite, engine, metrics, nvrtc, templates, values
from sparsegen.ptx import estimate, gpus
from sparsegen.targets import emulator

HERE = Path(__file__).resolve().parent
FACTORS = tuple(name for name in estimate.PARTS if name != "launch")
TIGHT = 0.02  # of the pull to no change, against one record
APART, CLOSE = 1.2, 1.1  # pairs nearer than the second are not judged
MOST_CELLS = 64_000_000  # entries times columns, beyond which even a few blocks take the emulator long


def main(arguments: Sequence[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", default=str(HERE / "results" / "device_check.json"))
    parser.add_argument("--gpu", help="of gpus.toml, where the name of the device does not tell")
    parser.add_argument("--out", default=str(HERE / "results" / "calibration"), help="without an ending")
    parser.add_argument("--write", action="store_true", help="into the package")
    parser.add_argument("--smoke", action="store_true", help="a few records")
    options = parser.parse_args(arguments)
    measured = json.loads(Path(options.records).read_text())
    gpu = replace(described(options.gpu or measured["gpu"]["name"]), fitted=None)
    records = [each for each in measured["records"] if "name" in each and "hot_us" in each and not each.get("fault")]
    records = records[:: max(1, len(records) // 12)] if options.smoke else records
    parts = [counted(each, gpu) for each in records]
    kept = [k for k, each in enumerate(parts) if each is not None]
    records, launches = [records[k] for k in kept], [parts[k] for k in kept]
    if not records:
        raise SystemExit(f"{options.records} holds no time of a kernel that can be executed here")
    times = np.array([each["hot_us"] for each in records])
    before = predicted(start(), launches)
    fitted = fit(launches, times)
    held_out = np.zeros(len(times))
    for name in sorted({each["matrix"] for each in records}):
        left = np.array([each["matrix"] == name for each in records])
        others = [each for each, out in zip(launches, left, strict=True) if not out]
        theirs = fit(others, times[~left]) if others else start()
        held_out[left] = predicted(theirs, [each for each, out in zip(launches, left, strict=True) if out])
    found = {
        "gpu": gpu.name, "records": len(records), "matrices": len({each["matrix"] for each in records}),
        "commit": measured["environment"]["commit"], "unfitted": judged(before, times, records),
        "fitted": judged(predicted(fitted, launches), times, records), "held out": judged(held_out, times, records),
        "launch_us": float(np.exp(fitted[0])), "rest": float(rest(fitted)),
        "factors": {name: float(np.exp(value)) for name, value in zip(FACTORS, fitted[2:], strict=True)},
    }  # fmt: skip
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{key: each[key] for key in ("matrix", "op", "dtype", "k", "kernel", "hot_us")} for each in records]
    for row, one, other in zip(rows, before, held_out, strict=True):
        row |= {"unfitted_us": float(one), "held_out_us": float(other)}
    path.with_suffix(".json").write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")
    text = told(found)
    path.with_suffix(".md").write_text(text)
    print(text)
    if options.write:
        gpus.FITTED.write_text(toml(found, gpus.FITTED.read_text() if gpus.FITTED.is_file() else ""))
        print(f"written to {gpus.FITTED.name}")
    return found


def described(name: str) -> gpus.GPU:
    """The GPU of gpus.toml that a device's name holds: "NVIDIA A100-SXM4-40GB" is the A100."""
    plain = "".join(letter for letter in name.upper() if letter.isalnum())
    fitting = [each for each in gpus.names() if each in plain]
    return gpus.get(max(fitting, key=len) if fitting else name)


def counted(record: dict, gpu: gpus.GPU) -> np.ndarray | None:
    """The parts of each launch of a record's kernel, (launches, parts); None where it cannot be executed here."""
    A = device_matrices.get(record["matrix"]).astype(record["dtype"])
    if A.nnz * record["k"] > MOST_CELLS:
        return None
    problem = engine.problem_of(A, op=record["op"], k=record["k"] if record["op"] == "spmm" else None, facts=None,
                                target="emulator")  # fmt: skip
    template = templates.get(record["name"], record["op"], "cuda")
    chosen = next((each for each in candidate.instances(template) if dict(each.params) == record["params"]), None)
    if chosen is None:
        return None
    try:
        packs = composite.pack(chosen, problem)
        text = emulator.unit(chosen, problem, packs)
        arrays = [
            {**each.arrays, "data": np.array(values.encode(chosen.encoding, A.data, each, problem.dtype))}
            for each in packs
        ]
        plan = emulator.bind(emulator.load(emulator.build(text)), chosen, problem, packs, arrays)
        x = checks.timed_inputs(problem)[0]
        y = np.zeros(emulator.ops.get(problem.op).shapes(problem)[1], problem.dtype, order=problem.order_c)
        launches = plan.estimates(x, y, gpu, emulator.image(text, gpu.arch).resources)
    except (nvrtc.CompileFailure, emulator.Fault, emulator.SparsegenValueError):
        return None
    cleared = [[0.0] * len(FACTORS)] * bool(chosen.zero)
    return np.array([[each.parts[name] for name in FACTORS] for each in launches] + cleared)


# A fit is a vector: log of the start of a launch, the logit of the share of what does not bind, logs of the factors.


def start() -> np.ndarray:
    """What the estimate takes where nothing was fitted, in a row of calls."""
    share = np.log(estimate.REST / (1 - estimate.REST))
    return np.array([np.log(estimate.NEXT_LAUNCH_US), share, *[0.0] * len(FACTORS)])


def rest(vector: np.ndarray) -> float:
    return 1 / (1 + np.exp(-vector[1]))


def predicted(vector: np.ndarray, launches: list[np.ndarray]) -> np.ndarray:
    """Microseconds of each record."""
    every = np.concatenate(launches) * np.exp(vector[2:])
    most = every.max(axis=1)
    each = np.exp(vector[0]) + most + rest(vector) * (every.sum(axis=1) - most)
    starts = np.cumsum([0, *[len(own) for own in launches]])[:-1]
    return np.add.reduceat(each, starts)


def fit(launches: list[np.ndarray], times: np.ndarray) -> np.ndarray:
    """The least squares of log(estimate/measured), with a weak pull to `start`."""
    begin = start()

    def loss(vector: np.ndarray) -> float:
        off = np.log(predicted(vector, launches) / times)
        return float((off**2).mean() + TIGHT / len(times) * ((vector - begin) ** 2).sum() + 1e-4 * (vector**2).mean())

    bounds = [(-4.0, 4.0)] * len(begin)
    return minimize(loss, begin, method="Powell", bounds=bounds, options={"maxiter": 60, "xtol": 1e-3, "ftol": 1e-6}).x


def judged(estimates: np.ndarray, times: np.ndarray, records: list[dict]) -> dict:
    """rms as a factor, and the share of pairs ordered rightly: of all kernels of a problem, and of instances of one."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for k, each in enumerate(records):
        groups[each["matrix"], each["op"], each["k"], each["dtype"]].append(k)
    counts: dict[str, list[int]] = {name: [0, 0] for name in ("kernels", "variants", "variants, close")}
    for own in groups.values():
        for a, b in itertools.combinations(own, 2):
            ratio = max(times[a], times[b]) / min(times[a], times[b])
            if ratio < CLOSE:
                continue
            same = records[a]["name"] == records[b]["name"]
            kind = "kernels" if not same else "variants" if ratio >= APART else "variants, close"
            if kind == "kernels" and ratio < APART:
                continue
            counts[kind][0] += int((times[a] < times[b]) == (estimates[a] < estimates[b]))
            counts[kind][1] += 1
    several = [np.array(own) for own in groups.values() if len(own) > 1]
    regret = [times[own[int(np.argmin(estimates[own]))]] / times[own].min() for own in several]
    off = np.log(estimates / times)
    return {
        "rms": float(np.exp(np.sqrt((off**2).mean()))), "bias": float(np.exp(off.mean())),
        "regret": metrics.geomean(regret) if regret else None,
        "pairs": {name: {"right": right, "of": of} for name, (right, of) in counts.items()},
    }  # fmt: skip


def told(found: dict) -> str:
    heads = (
        "estimate", "rms factor", "bias", "regret of the pick", "kernels over 20 % apart", "instances over 20 %",
        "10-20 %",
    )  # fmt: skip
    what = f"{found['records']} times of kernels on {found['matrices']} matrices, commit {found['commit']}"
    lines = [f"{found['gpu']}: {what}.", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in ("unfitted", "fitted", "held out"):
        own = found[name]
        pairs = [f"{each['right']} of {each['of']}" for each in own["pairs"].values()]
        regret = "-" if own["regret"] is None else f"{own['regret']:.3f}"
        lines.append(f"| {name} | {own['rms']:.2f} | {own['bias']:.2f} | {regret} | {' | '.join(pairs)} |")
    shown = ", ".join(f"{name} {factor:.2f}" for name, factor in found["factors"].items())
    lines += ["", f"A launch {found['launch_us']:.2f} us, of the rest {found['rest']:.2f}; factors: {shown}.", ""]
    return "\n".join(lines)


def toml(found: dict, old: str) -> str:
    """The file with this GPU's table in place of the one it had."""
    head = "# Fitted by experiments/calibrate.py to measured times; see gpus.Fitted."
    tables = [each for each in ("\n" + old).split("\n[")[1:] if not each.startswith(f"{found['gpu']}]")]
    own = [
        f"{found['gpu']}]", f"launch_us = {found['launch_us']:.4g}", f"rest = {found['rest']:.4g}",
        f"records = {found['records']}", f"rms = {found['held out']['rms']:.4g}",
        f'source = "{found["records"]} times on {found["matrices"]} matrices, commit {found["commit"]}"',
        "factors = { " + ", ".join(f"{name} = {factor:.4g}" for name, factor in found["factors"].items()) + " }",
    ]  # fmt: skip
    return head + "".join(f"\n\n[{each.strip()}" for each in [*tables, "\n".join(own)]) + "\n"


if __name__ == "__main__":
    main()
