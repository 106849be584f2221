"""One file from one address: resumed, retried, checked, and there under its name only when it is whole.

The standard library's urllib does it: one connection at a time is what politeness asks for, so that there is no pool
to keep; proxies, redirects and TLS it has; and what matters here (ranges, what a server may get wrong) would be ours
with any library.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from sparsegen import files
from sparsegen.errors import SparsegenError, SparsegenValueError

MOST_BYTES = 1 << 37
STEP = 1 << 18  # bytes read and written at a time
PROGRESS = 1 << 20  # bytes that a failed transfer must have brought not to count as a failure
LEAST_BYTES = 1 << 10  # within a timeout: less is a stall
PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be others later
LONGEST_WAIT_S = 120.0
AGENT = "sparsegen (sparse-matrix fetcher; one connection at a time)"


@dataclass(frozen=True)
class Manners:
    """How a server is treated. attempts: in vain, one after the other. pause_s: between two requests to one host.
    timeout_s: without a kilobyte. backoff_s: before the second attempt, doubled before each further one."""

    attempts: int = 5
    pause_s: float = 1.0
    timeout_s: float = 30.0
    backoff_s: float = 1.0


POLITE = Manners()
Progress = Callable[[int, int | None], None]  # bytes that are here, bytes of the whole where the server said

_asked: dict[str, float] = {}  # host -> when it was last asked


class NoAnswer(SparsegenError):
    """Nobody answers at this address, after all attempts."""


class _Passing(Exception):
    """A failure that another attempt may mend. after: seconds that the server wants to be left alone. kind: what the
    error is when no attempt did."""

    def __init__(self, reason: str, after: float | None = None, kind: type[SparsegenError] = SparsegenError):
        super().__init__(reason)
        self.after, self.kind = after, kind


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 8
    max_repeats = 2

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        secure = urllib.parse.urlsplit(req.full_url).scheme == "https"
        if urllib.parse.urlsplit(newurl).scheme not in (("https",) if secure else ("http", "https")):
            fp.close()
            raise SparsegenError(f"{req.full_url}: redirects to {newurl}, which is not followed: expected http(s), and "
                                 "nothing unencrypted after https")  # fmt: skip
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(
    url: str, path: Path, *, sha256: str | None = None, check: Callable[[Path], object] | None = None,
    most: int = MOST_BYTES, progress: Progress | None = None, manners: Manners = POLITE, again: bool = False,
) -> Path:  # fmt: skip
    """The file at `url` as `path`. What is there already is left alone, unless `again`.

    What arrived is kept beside it as `.part` and gone on with, in this process or a later one, where the server says
    that its file is still the same. sha256: what it must have. check(file): raises SparsegenError where the file is
    not what it should be. most: bytes. Proxies are those of the environment (https_proxy, no_proxy, ...).

    Raises SparsegenError: one, of what went wrong last; what arrived stays for the next call, unless it is wrong.
    """
    _checked(url)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part, path, again) as file:
            if file is None:  # another process was first
                return path
            _complete(file, url, part, sha256, check, most, progress or (lambda *_: None), manners)
            os.fsync(file.fileno())
            os.replace(part, path)
            _notes(part).unlink(missing_ok=True)
    except OSError as error:
        _cannot_write(path, error)
    return path


def _complete(file, url, part, sha256, check, most, progress, manners) -> None:
    """Fill the file until it is whole and right. One that was begun by an earlier call may be mixed: then once anew."""
    begun = file.seek(0, os.SEEK_END) > 0
    _fill(file, url, part, most, progress, manners)
    try:
        _verify(file, url, part, sha256, check)
        return
    except SparsegenError:
        _empty(file, part)
        if not begun:
            part.unlink(missing_ok=True)
            raise
    _fill(file, url, part, most, progress, manners)
    try:
        _verify(file, url, part, sha256, check)
    except SparsegenError:
        part.unlink(missing_ok=True)
        _notes(part).unlink(missing_ok=True)
        raise


def _verify(file: IO[bytes], url: str, part: Path, sha256: str | None, check) -> None:
    file.flush()
    if sha256 is not None:
        found = digest(part)
        if found != sha256.lower():
            raise SparsegenValueError(
                f"{url}: the SHA-256 of what arrived is {found}; expected {sha256}. It was not kept: either the file "
                "was changed at its source, or on its way"
            )
    if check is not None:
        try:
            check(part)
        except SparsegenError as error:
            raise SparsegenValueError(f"{url}: {str(error).replace(str(part), 'what arrived')}") from error


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fill(file: IO[bytes], url: str, part: Path, most: int, progress: Progress, manners: Manners) -> None:
    """Ask until the whole file is here, waiting longer after each failure that brought nothing."""
    failures = 0
    while True:
        before = file.seek(0, os.SEEK_END)
        try:
            _transfer(file, url, part, most, progress, manners)
            return
        except _Passing as error:
            reason, after, kind = str(error), error.after, error.kind
        if file.seek(0, os.SEEK_END) - before < PROGRESS:
            failures += 1
        if failures >= manners.attempts:
            raise kind(f"{url}: {reason}, {failures} times; what arrived is kept, try again later")
        if after is not None and after > LONGEST_WAIT_S:
            raise SparsegenError(f"{url}: {reason}; the server asks for {after:.0f} s of patience, try again later")
        time.sleep(max(after or 0.0, manners.backoff_s * 2.0 ** max(failures - 1, 0)))


def _transfer(file: IO[bytes], url: str, part: Path, most: int, progress: Progress, manners: Manners) -> None:
    """One request and its answer. Returns when the file is whole; raises _Passing where it is not yet."""
    start, notes = file.seek(0, os.SEEK_END), _read_notes(part)
    if start and notes.get("url") != url:
        _empty(file, part)
        start, notes = 0, {}
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if notes.get("validator"):
            headers["If-Range"] = notes["validator"]
    with _opened(url, headers, manners) as answer:
        if start and answer.status == 206:
            total = _resumed(answer, start, notes)
            if total is None:
                _empty(file, part)
                raise _Passing("the file changed at the server meanwhile")
        elif answer.status == 200:
            start = 0
            _empty(file, part)
            total = _number(answer.headers.get("Content-Length"))
        else:
            raise SparsegenError(f"{url}: an answer of HTTP {answer.status} that was not asked for")
        if total is not None and total > most:
            raise SparsegenError(f"{url}: {total} bytes, more than the {most} that are expected at most")
        _write_notes(part, {"url": url, "total": total, **_identity(answer.headers)})
        got = _copy(answer, file, start, most, total, url, progress, manners)
    if total is not None and got != total:
        raise _Passing(f"the server promised {total} bytes and ended after {got}")


def _copy(
    answer: Any, file: IO[bytes], got: int, most: int, total: int | None, url: str, progress: Progress, manners: Manners
) -> int:
    """Write what the answer brings; the bytes that are then here."""
    since, brought = time.monotonic(), 0
    progress(got, total)
    while data := _received(answer):
        if got + len(data) > most:
            raise SparsegenError(f"{url}: more than the {most} bytes that are expected at most")
        file.write(data)
        file.flush()
        got, brought = got + len(data), brought + len(data)
        progress(got, total)
        if time.monotonic() - since > manners.timeout_s:
            if brought < LEAST_BYTES:
                raise _Passing(f"{brought} bytes in {manners.timeout_s:g} s")
            since, brought = time.monotonic(), 0
    return got


def _received(answer: Any) -> bytes:
    try:
        return answer.read1(STEP)
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(f"the connection broke: {error or type(error).__name__}") from None


def _opened(url: str, headers: dict[str, str], manners: Manners) -> Any:
    host = urllib.parse.urlsplit(url).netloc
    time.sleep(max(0.0, _asked.get(host, -1e9) + manners.pause_s - time.monotonic()))
    _asked[host] = time.monotonic()
    opener = urllib.request.build_opener(_Redirects())
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=manners.timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            said = f"HTTP {error.code} {error.reason}".strip()
            if error.code in PASSING:
                raise _Passing(said, _retry_after(error.headers.get("Retry-After"))) from None
            if error.code == 416:  # what is here is as long as the whole, or longer: not the same file
                headers.pop("If-Range", None)
                if headers.pop("Range", None):
                    return _opened(url, headers, manners)
            if 300 <= error.code < 400:
                raise SparsegenError(f"{url}: the server redirects in a loop, or too often") from None
            raise SparsegenError(f"{url}: {said}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise SparsegenError(f"{url}: the server cannot prove who it is: {reason}") from None
        raise _Passing(f"no answer: {reason or type(error).__name__}", kind=NoAnswer) from None


def _resumed(answer: Any, start: int, notes: dict[str, Any]) -> int | None:
    """The bytes of the whole, where a 206 continues the file that was begun; None where it does not."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", "").strip())
    if found is None or int(found[1]) != start:
        return None
    known = {name: notes.get(name) for name in ("etag", "modified")}
    now = _identity(answer.headers)
    same = all(known[name] in (None, now[name]) for name in known)
    total = int(found[3])
    return total if same and notes.get("total") in (None, total) else None


def _identity(headers: Any) -> dict[str, str | None]:
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    strong = etag if etag and not etag.startswith("W/") else modified
    return {"etag": etag, "modified": modified, "validator": strong}


def _retry_after(text: str | None) -> float | None:
    """Seconds, of a number or a date."""
    if not text:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,18}", text.strip()) else None


def _checked(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SparsegenValueError(f"{url!r} is no address; expected one of http or https")


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_notes(part: Path) -> dict[str, Any]:
    try:
        found = json.loads(_notes(part).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_notes(part: Path, notes: dict[str, Any]) -> None:
    files.whole(_notes(part), lambda written: written.write_text(json.dumps(notes), "utf-8"))


def _empty(file: IO[bytes], part: Path) -> None:
    file.seek(0)
    file.truncate()
    _notes(part).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(part: Path, path: Path, again: bool) -> Iterator[IO[bytes] | None]:
    """The partial file, held by this process alone; None once another one, that held it, made `path` of it."""
    before = _when(path)
    if before is not None and not again:
        yield None
        return
    while True:
        file = open(part, "a+b")  # noqa: SIM115
        try:
            _lock(file)
            if _when(path) != before:
                yield None
                return
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                yield file
                return
        finally:
            _leave(file, part)


def _leave(file: IO[bytes], part: Path) -> None:
    """Close the partial file; an empty one is removed while it is still ours."""
    with file, contextlib.suppress(OSError):
        if os.fstat(file.fileno()).st_size == 0 and os.path.samestat(os.fstat(file.fileno()), part.stat()):
            part.unlink()
            _notes(part).unlink(missing_ok=True)


def _when(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _lock(file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two processes that fetch one file would write it twice
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _cannot_write(path: Path, error: OSError) -> NoReturn:
    raise SparsegenError(
        f"{path}: cannot be written: {error.strerror or error}. What was downloaded before is whole; free some space, "
        "or let SPARSEGEN_HOME name another folder"
    ) from error
