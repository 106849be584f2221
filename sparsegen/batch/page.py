"""A report as one page of HTML that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from sparsegen import files
from sparsegen.batch import plots, summary
from sparsegen.batch.summary import Run, gain

SHOWN = 6  # winners, and losers, with an image
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 76em; margin: 2em auto;
       padding: 0 1.5em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; border-top: 1px solid #d5d9de; padding-top: .8em; }
h3 { font-size: 1em; margin: 1.4em 0 .3em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4em 0; }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid #e6e9ec; font-weight: normal; }
th { color: #5c6670; } th:first-child, td:first-child, .left { text-align: left; }
.wide { overflow-x: auto; } .row { display: flex; flex-wrap: wrap; gap: 1.2em 2em; }
.plot { width: 540px; max-width: 100%; } .plot p { margin: 0 0 .2em; color: #5c6670; }
.plot svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #3c444d; }
.grid { stroke: #e6e9ec; } .one { stroke: #1b1f24; stroke-dasharray: 4 3; }
figure { margin: 0; width: 150px; font-size: 12px; overflow-wrap: anywhere; }
.spy { width: 150px; height: 150px; border: 1px solid #9aa2ab; background: #fff; }
.bad { color: #a5321a; } .quiet { color: #5c6670; }
"""
HEAD = ("count", "geomean", "p10", "median", "p90", "losses", "worst")


def write(path: Path, run: Run, found: dict, against: dict | None = None) -> None:
    """The page of a run, with what `summary.of` and `compare.of` found."""
    text = html(run, found, against)
    files.whole(path, lambda part: part.write_text(text, "utf-8"))


def html(run: Run, found: dict, against: dict | None = None) -> str:
    parts = [f"<h1>{found['matrices']} matrices, {found['records']} records</h1>"]
    parts += [_environment(each) for each in found["environments"].values()][:8]
    if against:
        parts.append(_against(against))
    for name, each in found["products"].items():
        parts.append(_product(name, each, [row for row in run.measured if summary.product(row) == name], run))
    parts.append(_failed(found))
    body = "\n".join(parts)
    title = escape(f"sparsegen: {', '.join(Path(folder).name for folder in run.folders)}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    head += f"\n<style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _environment(about: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    words = [about.get("target_device"), f"{about.get('threads', 1)} thread(s)", f"commit {about.get('commit')}",
             f"seed {about.get('seed')}", about.get("system"), about.get("compiler"), versions]  # fmt: skip
    return f'<p class="quiet">{escape("; ".join(str(word) for word in words if word))}</p>'


def _product(name: str, each: dict, rows: list[dict], run: Run) -> str:
    levels: list = next((about["bandwidth"] for about in run.environments.values() if about.get("bandwidth")), [])
    row = each["over"].get(summary.BEST)
    said = f"What <code>compile</code> returned for {each['count']} matrices"
    if row:
        said += (
            f" is {row['geomean']:.2f} times as fast as the best library (geometric mean; median {row['median']:.2f}), "
            f"slower by more than can be told apart on {row['losses']}"
        )
    said += f"; a library served {each['library_serves']} of them."
    if each["break_even_calls"]:
        calls = each["break_even_calls"]
        said += f" A search is won back after {calls['median']:,.0f} calls (median; p90 {calls['p90']:,.0f})."
    parts = [f"<h2>{escape(name)}</h2><p>{said}</p>"]
    curves = summary.profile(rows)
    pictures = [
        ("share of matrices on which a solver takes at most tau times the best time", plots.profile(curves)),
        ("gain over the best library, by size", plots.gains(rows)),
        ("roofline: lines are what each level of the memory can read", plots.roofline(rows, levels)),
    ]  # fmt: skip
    parts.append('<div class="row">')
    parts += [f'<div class="plot"><p>{title}</p>{svg}</div>' for title, svg in pictures]
    parts.append("</div>")
    for title, group in (
        ("speedup over", each["over"]), ("over the best library, by entries", each["by_size"]),
        ("by structure", each["by_structure"]), ("by domain", each["by_domain"]),
        ("share of what the bandwidth allows, of products that fit in", each["of_limit"]),
    ):  # fmt: skip
        parts.append(_spreads(title, group))
    parts += [_formats(each["formats"]), _images(rows)]
    return "\n".join(parts)


def _spreads(title: str, rows: dict[str, dict]) -> str:
    if not rows:
        return ""
    lines = []
    for name, row in rows.items():
        numbers = [
            str(row["count"]),
            *(f"{row[each]:.2f}" for each in HEAD[1:5]),
            str(row["losses"]),
            f"{row['worst']:.2f}",
        ]
        lines.append([name, *numbers, row["worst_matrix"]])
    return _table(title, ["", *HEAD, "its matrix"], lines)


def _formats(wins: dict[str, dict[str, int]]) -> str:
    formats = sorted({name for each in wins.values() for name in each})
    rows = [[name, *(str(each.get(format, "")) for format in formats)] for name, each in wins.items()]
    return _table("which format won where", ["structure", *formats], rows)


def _images(rows: list[dict]) -> str:
    ranked = sorted((each for each in rows if gain(each) and each.get("spy")), key=lambda each: -(gain(each) or 0))
    last = [each for each in ranked[-SHOWN:] if each not in ranked[:SHOWN]]
    parts = []
    for title, some in (("largest gains", ranked[:SHOWN]), ("smallest gains", last[::-1])):
        figures = [
            f"<figure>{plots.spy(each['spy'])}<figcaption>{escape(each['matrix'])}<br>{gain(each):.2f} times; "
            f"{escape(each['kernel'])}</figcaption></figure>"
            for each in some
        ]
        parts.append(f'<h3>{title}</h3><div class="row">{"".join(figures)}</div>' if figures else "")
    return "\n".join(parts)


def _against(found: dict) -> str:
    parts = [f"<h2>against {escape(', '.join(found['runs']))}</h2>"]
    mean = f", geometric mean {found['ratio']['geomean']:.3f}" if found["ratio"] else ""
    parts.append(f"<p>{found['compared']} records compared by {escape(found['by'])}, old over new{mean}.</p>")
    for label in ("slower", "faster"):
        rows = [
            [each["key"], f"{each['ratio']:.2f}", f"{each['noise']:.0%}", each["was"], each["now"]]
            for each in found[label][:40]
        ]
        title = f"{len(found[label])} {label} by more than their noise"
        parts.append(_table(title, ["", "ratio", "noise", "was", "is"], rows) if rows else f"<h3>{title}</h3>")
    return "\n".join(parts)


def _failed(found: dict) -> str:
    if not found["failed"]:
        return ""
    rows = [[key, words] for key, words in found["failed"].items()]
    return '<h2 class="bad">without a time</h2>' + _table("", ["job", "why"], rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    inside = line(head, "th") + "\n" + "\n".join(line(row, "td") for row in rows)
    return (f"<h3>{escape(title)}</h3>" if title else "") + f'<div class="wide"><table>{inside}</table></div>'
