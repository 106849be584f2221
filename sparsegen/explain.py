"""A report in words: which structure was found, which bytes were saved, why this kernel, how far from the limit."""

from __future__ import annotations

import numpy as np

from sparsegen import ops
from sparsegen.problem import Pattern, Problem

FEW_DIAGONALS = 64


def of(kernel) -> str:
    """Paragraphs about a Kernel. Only what its report measured is called measured."""
    report, problem = kernel.report(), kernel.problem
    said = [structure(problem.pattern), facts(problem)]
    if kernel.candidate is None:
        said.append(f"No kernel serves: {kernel.baseline} computes the product, as it would have without sparsegen.")
    else:
        said.append(_storage(kernel))
        said += [_race(report), estimated(report)]
    said.append(_limit(report))
    said.append(_model(report))
    said += [f"Note: {note}." for note in report.get("notes", [])]
    return "\n".join(part for part in said if part)


def structure(pattern: Pattern) -> str:
    """What the positions of the entries show."""
    m, n, nnz = pattern.m, pattern.n, pattern.nnz
    if nnz == 0:
        return f"A is {m} x {n} without entries."
    lengths = pattern.lengths
    words = [
        f"A is {m} x {n} with {nnz} entries ({nnz / (m * n):.3g} of all); "
        f"rows hold {int(lengths.min())} to {int(lengths.max())} of them, {nnz / m:.3g} on average"
    ]
    offsets, counts = pattern.diagonals
    if len(offsets) <= FEW_DIAGONALS:
        words.append(f"on {len(offsets)} diagonals from {int(offsets[0])} to {int(offsets[-1])}")
    else:
        near = float(counts[np.abs(offsets) <= max(m, n) // 20].sum() / nnz)
        words.append(f"on {len(offsets)} diagonals, {near:.0%} of them within a twentieth of the main one")
    empty = int((lengths == 0).sum())
    if empty:
        words.append(f"{empty} rows are empty")
    if lengths.max() > 16 * max(nnz / m, 1) and lengths.max() > 256:
        words.append("a few rows are far longer than the rest")
    return ", ".join(words) + "."


def facts(problem: Problem) -> str:
    """What is known of the values."""
    if problem.facts.constant:
        return "All values are one number, which need not be stored per entry."
    if problem.facts.exact_f32:
        return "Every value is a single-precision number, so half of its bytes carry nothing."
    return "Nothing is assumed of the values."


def _storage(kernel) -> str:
    report, problem, candidate = kernel.report(), kernel.problem, kernel.candidate
    pattern = problem.pattern
    index = problem.index_dtype.itemsize
    csr = pattern.nnz * (problem.dtype.itemsize + index) + (pattern.m + 1) * index
    encoding = {"full": "", "f32": ", values in single precision", "constant": ", one value for all entries"}
    about = f": {candidate.about}" if candidate.about else ""
    if candidate.origin == "model":
        by = (report.get("model") or {}).get("checkpoint")
        about = f", written for this matrix by the learned model{f' {by}' if by else ''}"
    words = f"The kernel is {candidate.label}{about}. It stores A as {candidate.format}"
    words += encoding[candidate.encoding]
    if report.get("bytes_moved"):
        packed = report["bytes_moved"] - ops.get(problem.op).moved_bytes(problem)
        change = f"{abs(1 - packed / csr):.0%} {'less' if packed < csr else 'more'}"
        words += f", {packed / 1e6:.3g} MB where CSR takes {csr / 1e6:.3g} MB, {change}"
    return words + "."


def _race(report) -> str:
    if not report.get("measured_us"):
        return ""
    tried = report.get("candidates", [])
    timed = [each for each in tried if each.get("measured_us")]
    words = f"It was measured at {report['measured_us']:.4g} us a call with {report['threads']} thread(s)"
    if report.get("measured_cold_us"):
        cold = f"{report['measured_cold_us']:.4g} us with nothing in its L2"
        words = f"It was measured at {report['measured_us']:.4g} us a call on {report['device']}, {cold}"
    if report.get("speedup"):
        words += (
            f", {report['speedup']:.2f} times as fast as {report['speedup_is_over']}, the best baseline "
            f"(differences under {report['resolution']:.1%} were not told apart)"
        )
    words += f". {len(tried)} candidates were tried, {len(timed)} of them raced"
    if report.get("break_even_calls"):
        words += f"; the search is won back after {report['break_even_calls']} calls"
    return words + "."


def estimated(report) -> str:
    """What a call may take on a GPU that is not here, and what binds it."""
    estimate = report.get("estimate")
    if not estimate:
        return ""
    return (
        f"A call may take {report['estimated_us']:.4g} us on the {estimate['device']}, most of it "
        f"{estimate['binds'].replace('_', ' and ')} ({estimate['label']})."
    )


def _model(report) -> str:
    model = report.get("model") or {}
    if "skipped" in model:
        return f"The learned model was left out: {model['skipped']}."
    if not model:
        return ""
    words = (
        f"The learned model {model['checkpoint']} began {model['samples']} texts, {model['distinct']} of them distinct "
        f"kernels for this matrix; that took {report['model_ms']:.3g} ms"
    )
    if model.get("unfinished"):
        words += f", which left no time for {model['unfinished']} more: a larger budget has it"
    return words + "."


def _limit(report) -> str:
    if not report.get("limit_us"):
        return ""
    share = report["fraction_of_limit"]
    runs = f"runs at {share:.0%} of the limit" if share <= 1 else "is as fast as this memory was measured to be"
    return (
        f"A call moves at least {report['bytes_moved'] / 1e6:.3g} MB: {report['limit_us']:.3g} us at best "
        f"({report['limit_is']}), so it {runs}."
    )
