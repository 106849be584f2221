"""What does a download make of each thing that a server can do wrong?

    python experiments/fetch_faults.py

A server on this machine misbehaves as told (tests/webserver.py); a matrix of SuiteSparse's layout is fetched from it as
from a mirror. Results: results/fetch_faults.md, a row for each fault: requests made, what came of it, and whether the
file that is then there, if any, is the right one, whole.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import webserver as served  # noqa: E402

from sparsegen import archive, fetch  # noqa: E402
from sparsegen.download import Manners  # noqa: E402

QUICK = Manners(attempts=3, pause_s=0.0, timeout_s=0.5, backoff_s=0.01)
MATRIX = b"%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.5\n3 2 -2.5\n%" + bytes(
    np.random.default_rng(7161).integers(97, 123, 200_003, dtype=np.uint8)
)
GOOD = served.packed({"A/A.mtx": MATRIX})
PASSING = {  # what happens before the server answers well
    "nothing is wrong": [],
    "the connection ends in the middle": [served.cut(100_003)],
    "twice, then a server without ranges": [served.cut(100_003), served.cut(7), served.no_ranges],
    "it stalls in the middle": [served.stall(60_007, 5)],
    "503 twice": [served.status(503), served.status(503, Retry_After="0")],
    "429 with Retry-After in the past": [served.status(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")],
    "it closes without a word": [served.silent],
    "it promises more bytes than it has": [served.length(len(GOOD) + 4009)],
    "a redirection to another path": [served.status(302, Location="/MM/G/A.tar.gz")],
}
LASTING = {  # what the server does again and again
    "404": served.status(404),
    "403": served.status(403),
    "503 for ever": served.status(503),
    "429 with Retry-After of an hour": served.status(429, Retry_After="3600"),
    "a redirection in a circle": served.status(302, Location="/MM/G/A.tar.gz"),
    "a redirection to a local file": served.status(302, Location="file:///etc/hostname"),
    "it stalls for ever": served.stall(0, 5),
    "a byte now and then": served.drip(0.1),
    "it promises a terabyte": served.length(1 << 40),
    "it promises fewer bytes than it sends": served.length(100_003),
    "a web page, with 200": served.page,
}


class Zeros(io.RawIOBase):
    """As many as are asked for."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def expanding(size: int) -> bytes:
    """A small archive of a file of `size` zeros."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        member = tarfile.TarInfo("A/A.mtx")
        member.size = size
        made.addfile(member, Zeros())
    return out.getvalue()


ARCHIVES = {
    "an archive that ends early": GOOD[: len(GOOD) // 2],
    "an archive with a byte changed": GOOD[:50_021] + bytes([GOOD[50_021] ^ 0x41]) + GOOD[50_022:],
    "an archive with a path outside": served.packed({"../../A/A.mtx": MATRIX}),
    "an archive with an absolute path": served.packed({"/A/A.mtx": MATRIX}),
    "an archive of another matrix": served.packed({"B/B.mtx": MATRIX}),
    "an archive that expands without end": lambda: expanding(archive.ALWAYS + 1),
    "no archive": MATRIX,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(arguments)
    rows, right = [], True
    for title, script in PASSING.items():
        rows.append(one(title, GOOD, script, expected="fetched"))
    for title, answer in LASTING.items():
        rows.append(one(title, GOOD, [answer] * 40, expected="failed"))
    for title, body in ARCHIVES.items():
        rows.append(one(title, body if isinstance(body, bytes) else body(), [], expected="failed"))
    lines = ["# Faults of a server, and what a download makes of them", ""]
    lines += ["| fault | requests | outcome | what is said | as expected |", "|---|---|---|---|---|"]
    for row in rows:
        right &= row[-1] == "yes"
        lines.append("| " + " | ".join(map(str, row)) + " |")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fetch_faults.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if right else 1


def one(title: str, body: bytes, script: list, expected: str) -> list:
    """A row: the fault, requests, state, words, and whether all is as it should be."""
    with tempfile.TemporaryDirectory(prefix="sparsegen-faults-") as home, served.running() as server:
        os.environ["SPARSEGEN_HOME"] = home
        server.files["/MM/G/A.tar.gz"] = body
        server.script = list(script)
        (item,) = fetch.fetch(["G/A"], server.url, manners=QUICK)
        outside = [path for path in Path(home).rglob("A.mtx")]
        whole = item.path.is_file() and item.path.read_bytes() == GOOD
        right = item.state == expected and whole == (expected == "fetched") and not outside
        said = item.reason.replace(server.url, "SITE").replace(home, "HOME")
        said = re.sub(r"\s+", " ", said).replace("|", "/")[:160]
        return [title, len(server.requests), item.state, said, "yes" if right else "NO"]


if __name__ == "__main__":
    sys.exit(main())
