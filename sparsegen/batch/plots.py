"""Plots as SVG text: performance profile, gains by size, roofline, images of matrices. No library, no network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape

from sparsegen.batch.summary import gain, structure

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 16, 44
COLOURS = ("#1f5fa8", "#c8501e", "#2e8540", "#7b4fa3", "#a07a00", "#0f8b8d", "#b0305c", "#5c6670")
GREYS = ("#1b1f24", "#5c6670", "#9aa2ab", "#c9ced4", "#dfe3e6")
MOST_TAU = 16.0
POINT = 3.2


class _Axes:
    """Logarithmic x, and y by `linear` or not, over given ranges; text and marks in their units."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], labels: tuple[str, str], linear: bool = False):
        self.x, self.y, self.linear = _wide(x), y if linear else _wide(y), linear
        self.marks: list[str] = []
        self.legend: list[tuple[str, str]] = []
        for value in _ticks(*self.x):
            self.marks.append(_line(self.at_x(value), TOP, self.at_x(value), HEIGHT - BOTTOM, "grid"))
            self.marks.append(_text(self.at_x(value), HEIGHT - BOTTOM + 16, _short(value), "middle"))
        for value in (0, 0.25, 0.5, 0.75, 1) if linear else _ticks(*self.y):
            self.marks.append(_line(LEFT, self.at_y(value), WIDTH - RIGHT, self.at_y(value), "grid"))
            self.marks.append(_text(LEFT - 6, self.at_y(value) + 4, _short(value), "end"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.marks.append(_text(middle, HEIGHT - 8, labels[0], "middle"))
        across = f'transform="rotate(-90 14 {HEIGHT / 2:.0f})"'
        self.marks.append(f'<text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle" {across}>{escape(labels[1])}</text>')

    def at_x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _share(value, *self.x)

    def at_y(self, value: float) -> float:
        low, high = self.y
        share = (value - low) / (high - low) if self.linear else _share(value, low, high)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def path(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        text = "M" + " L".join(f"{self.at_x(x):.1f} {self.at_y(y):.1f}" for x, y in points)
        self.marks.append(f'<path d="{text}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def point(self, x: float, y: float, colour: str, title: str) -> None:
        self.marks.append(
            f'<circle cx="{self.at_x(x):.1f}" cy="{self.at_y(y):.1f}" r="{POINT}" fill="{colour}" fill-opacity="0.65">'
            f"<title>{escape(title)}</title></circle>"
        )

    def svg(self, title: str) -> str:
        for place, (name, colour) in enumerate(self.legend):
            y = TOP + 10 + 18 * place
            self.marks.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 8}" width="10" height="10" fill="{colour}"/>')
            self.marks.append(_text(WIDTH - RIGHT + 30, y + 1, name, "start"))
        inside = "\n".join(self.marks)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">\n{inside}\n</svg>'


def profile(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The share of matrices on which a solver takes at most tau times the best time."""
    axes = _Axes((1, MOST_TAU), (0, 1), ("tau: time over the best time", "share of matrices"), linear=True)
    for (name, steps), colour in zip(curves.items(), _colours(), strict=False):
        points, share = [(1.0, 0.0)], 0.0
        for tau, reached in steps:
            if tau > MOST_TAU:
                break
            points += [(tau, share), (tau, reached)]
            share = reached
        axes.path([*points, (MOST_TAU, share)], colour)
        axes.legend.append((name, colour))
    return axes.svg("performance profile")


def gains(records: Sequence[dict]) -> str:
    """The gain over the best library against the entries of the matrix, by structure."""
    known = [(each, found) for each in records if (found := gain(each)) and each["nnz"]]
    sizes, values = [each["nnz"] for each, _ in known] or [1], [found for _, found in known] or [1.0]
    axes = _Axes(
        (min(sizes), max(sizes)), (min(0.5, *values, 1), max(*values, 2)), ("entries", "times the best library")
    )
    axes.marks.append(_line(LEFT, axes.at_y(1), WIDTH - RIGHT, axes.at_y(1), "one"))
    _scatter(axes, [each for each, _ in known], lambda each: (each["nnz"], gain(each) or 1.0), "{:.2f} times")
    return axes.svg("gain by size")


def roofline(records: Sequence[dict], levels: Sequence[Sequence]) -> str:
    """Rates against operations per byte moved; lines are what each level of the memory allows."""
    known = [each for each in records if each.get("gflop_per_s") and each.get("bytes_moved")]
    places = {each["key"]: (_intensity(each), each["gflop_per_s"]) for each in known}
    xs, ys = [x for x, _ in places.values()] or [0.1], [y for _, y in places.values()] or [1.0]
    roofs = [rate / 1e9 * max(xs) for _, _, rate in levels]
    axes = _Axes((min(xs), max(xs)), (min(ys), max(ys + roofs)), ("floating-point operations per byte", "GFLOP/s"))
    for (name, _, rate), grey in zip(levels, GREYS, strict=False):
        low, high = max(axes.x[0], axes.y[0] * 1e9 / rate), axes.x[1]
        if low < high:
            axes.path([(x, rate / 1e9 * x) for x in (low, high)], grey)
        axes.legend.append((f"{name} {rate / 1e9:.0f} GB/s", grey))
    _scatter(axes, known, lambda each: places[each["key"]], "{:.3g} GFLOP/s")
    return axes.svg("roofline")


def spy(lines: Sequence[str]) -> str:
    """An image of a matrix from the digits of its record."""
    shades: dict[str, str] = {}
    for y, line in enumerate(lines):
        for run in re.finditer(r"([1-9])\1*", line):
            width = len(run[0])
            shades[run[1]] = shades.get(run[1], "") + f"M{run.start()} {y}h{width}v1h-{width}z"
    cells = "".join(
        f'<path d="{path}" fill-opacity="{0.2 + 0.09 * int(digit):.2f}"/>' for digit, path in sorted(shades.items())
    )
    size = max(len(lines), 1)
    return f'<svg class="spy" viewBox="0 0 {size} {size}" shape-rendering="crispEdges">{cells}</svg>'


def _scatter(axes: _Axes, records: Sequence[dict], place: Callable[[dict], tuple[float, float]], said: str) -> None:
    kinds = sorted({structure(each) for each in records})
    colours = dict(zip(kinds, _colours(), strict=False))
    for each in records:
        x, y = place(each)
        title = f"{each['matrix']}: {each['nnz']} entries, {said.format(y)}, {each['kernel']}"
        axes.point(x, y, colours[structure(each)], title)
    axes.legend += colours.items()


def _intensity(record: dict) -> float:
    return record["gflop_per_s"] * record["measured_us"] * 1e3 / record["bytes_moved"]


def _colours() -> Sequence[str]:
    return COLOURS * 8


def _wide(bounds: tuple[float, float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis that are apart."""
    low, high = max(bounds[0], 1e-9), max(bounds[1], 1e-9)
    return (low, high) if high > 1.2 * low else (low / 1.5, high * 1.5)


def _share(value: float, low: float, high: float) -> float:
    return math.log(max(value, 1e-12) / low) / math.log(high / low)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between, few enough to read."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [
            step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high * 1.0001
        ]
        if len(found) <= 9:
            return found
    return found[:: math.ceil(len(found) / 9)]


def _short(value: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
