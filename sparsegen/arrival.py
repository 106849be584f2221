"""An artifact that arrives at a GPU of its architecture: its machine code checked and timed there, a Kernel.

The code that was saved is what runs; nothing is compiled. Its certificate is not taken on trust: every check of a new
kernel is made again, in a worker, before the first call.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from sparsegen import baselines, gpu, targets
from sparsegen import report as reports
from sparsegen.artifact import Artifact
from sparsegen.binding import CertificateError
from sparsegen.errors import SparsegenError
from sparsegen.kernel import Kernel
from sparsegen.search import search
from sparsegen.verdict import Level

SECONDS = 10.0  # for all of it


def arrived(artifact: Artifact, seconds: float = SECONDS, seed: int = 20260) -> Kernel | Artifact:
    """The kernel of an artifact, or whatever library is faster here; the artifact itself where it cannot serve.

    Then its report says why: no GPU, one of another architecture, or a check that failed, and a call still raises.
    """
    try:
        ordinal = gpu.chosen()
        device = gpu.get(ordinal)
    except SparsegenError as error:
        return artifact.noted(f"not run here: {error}")
    target = targets.get("cuda")
    if not target.runs(artifact.arch, device.arch):
        return artifact.noted(f"not run here: it is for {artifact.arch}, and {device.name} is {device.arch}")
    problem = replace(artifact.problem, device=str(device), ordinal=ordinal)
    A, chosen = artifact._A, artifact.candidate
    own = A if A.dtype == problem.dtype else A.astype(problem.dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        target.keep(path, artifact.image)
        outcome = search(problem, own, iter([chosen]), seconds, 1, seed, baselines.imported(), made={chosen.key: path})
    if not outcome.tried:
        return artifact.noted(f"not run here: {'; '.join(outcome.notes) or 'the search tried nothing'}")
    verdict = outcome.tried[0].verdict
    if verdict.level < Level.CORRECT:
        return artifact.refused(f"refused on {device}: {verdict.fault}: {verdict.message}", verdict.level)
    outcome.notes.append(f"loaded: checked again and timed on {device}; certified before: {artifact.verified}")
    report = reports.made(outcome, problem) | {"certificate": artifact.certificate}
    winner = chosen if outcome.winner else None
    try:
        return Kernel(A, problem, winner, outcome.baseline, report, 1, {}, artifact.image if winner else None)
    except CertificateError as error:
        return artifact.refused(f"refused on {device}: {error}", Level.RAN)
