"""Is every CUDA template right on every matrix of a folder that its format can hold?

    python experiments/emulated_collection.py --matrices DIR [--op spmm] [--resume]

Without a GPU: kernels are executed by the emulator, every access checked. Of each template one feasible instance is
judged on each matrix, another one from matrix to matrix, in the value encodings that the values allow, for float64 and
float32; SpMM with K columns stored by rows. What a format refuses is counted with its reason. Records go to
results/emulated_<op>.jsonl (resumed from), the table beside them as .md.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from sparsegen import candidate, checks, engine, evaluate, fence, inputs, matrices, templates
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError
from sparsegen.fence import Died
from sparsegen.problem import Problem
from sparsegen.record import Records, environment
from sparsegen.verdict import Level

HERE = Path(__file__).resolve().parent
MOST_NNZ = 2_000_000
K = 5
DTYPES = ("float64", "float32")
SEED = 20260


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", required=True, type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--op", default="spmv", choices=["spmv", "spmm"])
    parser.add_argument("--most", type=int, default=MOST_NNZ, help="entries of a matrix (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the records that are there")
    options = parser.parse_args(arguments)
    path = options.out / f"emulated_{options.op}.jsonl"
    if not options.resume:
        path.unlink(missing_ok=True)
    records = Records(path)
    if "environment" not in records.known:
        records.append({"key": "environment", **environment(SEED)})
    files = sorted((each for each in options.matrices.iterdir() if ".mtx" in each.name), key=lambda each: each.name)
    for turn, file in enumerate(tqdm(files, file=sys.stderr, disable=not sys.stderr.isatty())):
        if any(f"{file.name} {dtype}" not in records.known for dtype in DTYPES):
            collect(file, turn, options.op, options.most, records)
            path.with_suffix(".md").write_text(table(records, options.op))
    path.with_suffix(".md").write_text(table(records, options.op))
    print(table(records, options.op))


def collect(file: Path, turn: int, op: str, most: int, records: Records) -> None:
    """A record for each dtype: what became of every template, or why the matrix is left out."""
    why = None
    try:
        if (nnz := matrices.info(file).nnz) > most:
            why = f"{nnz} entries"
        elif (A := inputs.as_csr(matrices.load(file))).dtype.kind == "c":
            why = "complex"
    except SparsegenError as error:
        why = str(error)
    for dtype in DTYPES:
        key = f"{file.name} {dtype}"
        if key in records.known:
            continue
        if why:
            records.append({"key": key, "left_out": why})
            continue
        own = A.astype(dtype)
        problem = engine.problem_of(own, op=op, k=K if op == "spmm" else None, target="emulator", threads=1)
        begun = time.monotonic()
        found = judged(problem, own, turn)
        shape = {"m": own.shape[0], "n": own.shape[1], "nnz": int(own.nnz)}
        records.append({"key": key, **shape, "seconds": time.monotonic() - begun, "templates": found})


def judged(problem: Problem, A, turn: int) -> dict[str, dict]:
    """Template -> label, level and fault of one of its instances, or the reason that refuses all of them."""
    references, found = checks.References(problem), {}
    with fence.session(problem, A) as session:
        for template in (each for each in templates.load("cuda") if each.op == problem.op):
            feasible = []
            reasons = []
            for each in candidate.instances(template):
                reason = templates.refusal(each, problem)
                (reasons if reason else feasible).append(reason or each)
            if not feasible:
                found[template.name] = {"refused": min(reasons)}
                continue
            found[template.name] = one(feasible[turn % len(feasible)], problem, session, references)
    return found


def one(each: Candidate, problem: Problem, session: fence.Session, references: checks.References) -> dict:
    try:
        verdict = evaluate.evaluate(each, problem, session, references, "one")
        if verdict.level >= Level.COMPILED:
            session.ask("drop", 10.0, names=["one"])
        return {"label": each.label, "level": verdict.level.name, "fault": verdict.fault, "message": verdict.message}
    except Died as error:
        return {"label": each.label, "level": "COMPILED", "fault": error.fault, "message": str(error)}


def table(records: Records, op: str) -> str:
    """Of each template how often it was right, refused and faulty; then every fault, and why matrices were left out."""
    about = records.known["environment"]
    lines = [each for each in records.known.values() if "templates" in each]
    names = sorted({name for line in lines for name in line["templates"]})
    said = [
        f"`python experiments/emulated_collection.py --matrices DIR --op {op}`", "",
        f"{len(lines) // len(DTYPES)} matrices, {' and '.join(DTYPES)}{f', k = {K}' if op == 'spmm' else ''}; "
        f"commit {about['commit']}, {about['device']}; {sum(line['seconds'] for line in lines) / 3600:.1f} hours.", "",
        "| template | right | instances | refused | faulty |", "|---|---|---|---|---|",
    ]  # fmt: skip
    faults = []
    for name in names:
        of = [(line["key"], line["templates"][name]) for line in lines if name in line["templates"]]
        right = [each for _, each in of if each.get("level") == "CORRECT"]
        refused = [each for _, each in of if "refused" in each]
        bad = [(key, each) for key, each in of if each not in right and each not in refused]
        faults += [f"- {name} ({each['label']}), {key}: {each['fault']}: {each['message']}" for key, each in bad]
        labels = len({each["label"] for each in right})
        said.append(f"| {name} | {len(right)} | {labels} | {len(refused)} | {len(bad)} |")
    every = [each for line in lines for each in line["templates"].values()]
    reasons = Counter(kind(each["refused"]) for each in every if "refused" in each)
    said += ["", "Faults:", *(faults or ["none"]), "", "Refusals:"]
    said += [f"- {count} x {reason}" for reason, count in reasons.most_common()] or ["none"]
    left = Counter(kind(each["left_out"]) for each in records.known.values() if "left_out" in each)
    said += ["", "Matrices left out:"]
    said += [f"- {count // len(DTYPES)} x {why}" for why, count in left.most_common()] or ["none"]
    return "\n".join([*said, ""])


def kind(reason: str) -> str:
    """A reason without its numbers."""
    return re.sub(r"\d[\d.,]*", "#", reason)


if __name__ == "__main__":
    main()
