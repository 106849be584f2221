"""Makes the shipped index and the shipped lists of the SuiteSparse collection, from a folder of its matrices.

    python experiments/make_index.py --matrices DIR

DIR has a manifest.tsv with the group, name, family, domain, kind, sizes and field of each file. Written are
matrices/index.tsv (those facts, and the statistics that `gallery.twin` takes) and the lists in matrices/collections:
one for each domain, and the split into train and test of models/held_out.txt, by family.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from tqdm import tqdm

from sparsegen import gallery, matrices
from sparsegen.index import STATISTICS
from sparsegen.train.corpus import held_out_families

ROOT = Path(__file__).resolve().parent.parent / "matrices"
ELSEWHERE = {"LPnetlib/QAP15_A_eq"}  # in this group by name only: the collection has no such matrix
FACTS = ("group", "name", "rows", "cols", "nnz", "field", "symmetric", "kind", "domain", "family")
SUITESPARSE = (
    "Source: SuiteSparse Matrix Collection, https://sparse.tamu.edu (Davis & Hu, ACM TOMS 38(1), 2011)",
    "Licence: CC BY 4.0",
)
DLMC = (
    "Source: Deep Learning Matrix Collection, https://github.com/google-research/google-research/tree/master/sgk "
    "(Gale, Zaharia, Young & Elsen, SC 2020)",
    "Licence: none is stated with the archive",
)
DOMAINS = {
    "structural": ("structures, materials, heat and sound", "structural|materials|acoustics|thermal"),
    "fluid": ("fluids, fields and other differential equations", "cfd|2d/3d pde|electromagnetics|model reduction"),
    "circuit": ("circuits, devices and power grids", "circuit|semiconductor|power network|vlsi netlist"),
    "graph": (
        "networks of people, pages, roads and meshes",
        "biological network|citation/collaboration graph|graph (other)|internet topology|machine-learning graph|"
        "mesh graph|random graph|road/geographic graph|social network|social/other network|web graph",
    ),
    "optimization": (
        "linear programs, optimal control, least squares",
        "linear programming|integer programming|optimal control|optimization|least squares",
    ),
    "chemistry": ("chemical processes and electrons", "chemical process|quantum chemistry"),
    "combinatorial": ("incidence and boundary matrices", "combinatorial"),
    "pruned": ("layers of pruned neural networks", "dnn pruned"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", required=True, metavar="DIR", help="a folder with its manifest.tsv")
    parser.add_argument("--out", default=str(ROOT), help="where index.tsv and collections/ are (%(default)s)")
    options = parser.parse_args()
    folder, out = Path(options.matrices), Path(options.out)
    lines = (folder / "manifest.tsv").read_text("utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines, delimiter="\t") if row["group"]]
    entries = [entry(row, folder) for row in tqdm(rows, disable=not sys.stderr.isatty())]
    write(out, sorted((each for each in entries if key(each) not in ELSEWHERE), key=key))


def key(entry: dict[str, str]) -> str:
    return f"{entry['group']}/{entry['name']}"


def entry(row: dict[str, str], folder: Path) -> dict[str, str]:
    """The line of the index of a line of the manifest."""
    name = row["name"]
    if row["group"] == "DLMC":  # its path in the archive
        name = row["source_path"].removeprefix("dlmc/").removesuffix(".smtx")
    found = gallery.statistics(matrices.load(folder / row["file"])).as_dict()
    facts = {
        **{fact: row[fact] for fact in ("group", "rows", "cols", "field", "kind", "domain", "family")}, "name": name,
        "nnz": row["nnz_full"], "symmetric": str(int(row["symmetry"] in ("symmetric", "hermitian"))),
    }  # fmt: skip
    return facts | {number: f"{found[number]:.6g}" for number in STATISTICS}


def write(out: Path, entries: list[dict[str, str]]) -> None:
    (out / "collections").mkdir(parents=True, exist_ok=True)
    with open(out / "index.tsv", "w", encoding="utf-8", newline="") as file:
        for line in (*SUITESPARSE, *DLMC, "Made by experiments/make_index.py"):
            file.write(f"# {line}\n")
        table = csv.DictWriter(file, (*FACTS, *STATISTICS), delimiter="\t", lineterminator="\n")
        table.writeheader()
        table.writerows(entries)
    held_out = held_out_families()
    real = [each for each in entries if each["group"] != "DLMC"]
    split = {
        "train": ("families that models may learn from", [e for e in real if e["family"] not in held_out]),
        "test": ("families that no shipped model has learned from", [e for e in real if e["family"] in held_out]),
    }
    lists = {name: (about, [e for e in entries if e["domain"] in set(domains.split("|"))])
             for name, (about, domains) in DOMAINS.items()}  # fmt: skip
    for name, (about, members) in {**split, **lists}.items():
        source = DLMC if name == "pruned" else SUITESPARSE
        text = "".join(f"# {line}\n" for line in (about, *source)) + "".join(f"{key(each)}\n" for each in members)
        (out / "collections" / f"{name}.txt").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
