"""What the templates might take on two GPUs, on matrices of different structure: estimated, uncalibrated.

    python experiments/estimates.py --matrices DIR [--devices H200 A100] [--op spmm --k 32] [--only NAME ...] [--smoke]

Every template is judged by the emulator, each of its instances on each matrix, and the instance of the least estimate
is kept. No GPU is asked, and no estimate here was ever compared with one. Written to results/estimates.{md,json}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparsegen import candidate, checks, engine, evaluate, fence, gallery, inputs, matrices, templates
from sparsegen.problem import Problem
from sparsegen.ptx import estimate, gpus
from sparsegen.record import environment
from sparsegen.verdict import Level

HERE = Path(__file__).resolve().parent
CHOSEN = (  # of the collection, by the start of the file's name: a dozen of different structure
    "Boeing__crystk01", "DLMC__transformer_l0_regularization_0.5_body_decoder_layer_0_ffn_conv2",
    "Data-miplib3__fast0507", "HB__bcsstk25", "Newman__as-22july06", "PARSEC__SiH4", "Sandia__mult_dcop_01",
    "UTEP__Dubcova1", "fl_xgboost__a9a", "ginkgo__lap3d_40", "kahypar__ISPD98_ibm10",
    "maros_meszaros_qpbenchmark__BOYD2",
)  # fmt: skip
MOST_NNZ = 2_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", help="a folder of matrix files")
    parser.add_argument("--only", nargs="*", help="names of files, or how they start, in place of the dozen")
    parser.add_argument("--devices", nargs="+", default=["H200", "A100"])
    parser.add_argument("--op", default="spmv", choices=["spmv", "spmm"])
    parser.add_argument("--k", type=int)
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--out", default=str(HERE / "results" / "estimates"), help="without an ending")
    parser.add_argument("--smoke", action="store_true", help="two small matrices and one instance of each template")
    options = parser.parse_args(arguments)
    devices = [gpus.get(name) for name in options.devices]
    found: dict[str, dict] = {}
    for name, A in _matrices(options):
        A = A.astype(options.dtype)
        k = options.k or (32 if options.op == "spmm" else None)
        problem = engine.problem_of(A, op=options.op, k=k, facts=None, target="emulator", threads=1)
        best = judged(problem, A, devices, options.smoke)
        found[name] = {"shape": list(A.shape), "nnz": int(A.nnz), "templates": best}
        print(f"{name}: {A.shape[0]} x {A.shape[1]}, {A.nnz} entries", flush=True)
    labels = sorted({estimate.label(each) for each in devices})
    about = {"op": options.op, "dtype": options.dtype, "label": ", ".join(labels), "environment": environment(0)}
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({**about, "matrices": found}, indent=1) + "\n")
    text = table(found, devices, about)
    path.with_suffix(".md").write_text(text)
    print(text)


def judged(problem: Problem, A, devices: list[gpus.GPU], one: bool) -> dict[str, dict]:
    """Template -> GPU -> the best of its instances, or why there is none."""
    references = checks.References(problem)
    found: dict[str, dict] = {}
    with fence.session(problem, A) as session:
        for template in templates.load("cuda"):
            if template.op != problem.op:
                continue
            best: dict[str, dict] = {}
            found[template.name] = best
            for number, each in enumerate(candidate.instances(template)):
                if each.encoding != "full" or (one and best):
                    continue
                verdicts = _estimated(each, problem, session, references, f"{template.name} {number}", devices)
                for gpu, verdict in zip(devices, verdicts, strict=True):
                    entry = {"label": each.label, "estimated_us": verdict.estimated_us}
                    if verdict.estimate:
                        entry |= {key: verdict.estimate[key] for key in ("parts", "binds", "occupancy", "blocks_run")}
                    else:
                        entry["why"] = verdict.message or verdict.fault
                    kept = best.get(gpu.name, {}).get("estimated_us")
                    if gpu.name not in best or (entry["estimated_us"] or np.inf) < (kept or np.inf):
                        best[gpu.name] = entry
    return found


def _estimated(each, problem: Problem, session, references, name: str, devices: list[gpus.GPU]) -> list:
    verdict = evaluate.evaluate(each, problem, session, references, name)
    compiled = evaluate.compile(each, problem) if verdict.level >= Level.CORRECT else verdict
    if not isinstance(compiled, evaluate.Compiled):
        return [verdict] * len(devices)
    made = [evaluate.estimate(verdict, compiled, problem, session, name, gpu) for gpu in devices]
    session.ask("drop", 10.0, names=[name])
    return made


def _matrices(options) -> list:
    if options.smoke and not options.matrices:
        return [("stencil", gallery.stencil2d(23, 19)), ("graph", gallery.powerlaw(301, 301, 1511, seed=7013))]
    if not options.matrices:
        raise SystemExit("expected --matrices DIR, or --smoke")
    wanted, found = options.only or CHOSEN, []
    for file in sorted(Path(options.matrices).iterdir()):
        if any(file.name.startswith(each) for each in wanted):
            A = inputs.as_csr(matrices.load(file))
            if A.nnz <= MOST_NNZ and A.dtype.kind == "f":
                found.append((file.name.split(".")[0], A))
    return found[:2] if options.smoke else found


def table(found: dict, devices: list[gpus.GPU], about: dict) -> str:
    """Microseconds by matrix and template; the least of each row is marked."""
    names = sorted({name for each in found.values() for name in each["templates"]})
    what = f"{about['op']}, {about['dtype']}: microseconds of a call, {about['label']}"
    lines = [f"{what}; - where a template cannot serve."]
    for gpu in devices:
        head = f"| matrix | nonzeros | {' | '.join(names)} |"
        lines += ["", gpu.name, "", head, "|---" * (len(names) + 2) + "|"]
        for matrix, each in found.items():
            times = [each["templates"][name].get(gpu.name, {}).get("estimated_us") for name in names]
            least = min((time for time in times if time), default=None)
            shown = ["-" if not time else f"**{time:.1f}**" if time == least else f"{time:.1f}" for time in times]
            lines.append(f"| {matrix} | {each['nnz']} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", f"Made without a GPU, at commit {about['environment']['commit']}.", ""])


if __name__ == "__main__":
    main()
