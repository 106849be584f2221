"""One file from a server that does everything wrong that servers do: it arrives whole, or one error says why not."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import threading
import time

import numpy as np
import pytest
import webserver as served

from sparsegen import download
from sparsegen.download import Manners
from sparsegen.errors import SparsegenError, SparsegenValueError

BODY = np.random.default_rng(7013).bytes(300_007)
QUICK = Manners(attempts=3, pause_s=0.0, timeout_s=0.4, backoff_s=0.01)
fetched = functools.partial(download.download, manners=QUICK)


@pytest.fixture
def server():
    with served.running() as running:
        running.files["/A.bin"] = BODY
        yield running


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "A.bin"


def alone(path) -> bool:
    """Nothing but the file is left in its folder."""
    return [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_file(server, path):
    seen = []
    url = f"{server.url}/A.bin"
    found = fetched(url, path, sha256=hashlib.sha256(BODY).hexdigest(), progress=lambda *now: seen.append(now))
    assert found == path and path.read_bytes() == BODY and alone(path)
    assert seen[0] == (0, len(BODY)) and seen[-1] == (len(BODY), len(BODY))
    fetched(url, path)
    assert len(server.requests) == 1 and "sparsegen" in server.requests[0][1]["user-agent"]
    server.files["/A.bin"] = b"another"
    fetched(url, path, again=True)
    assert path.read_bytes() == b"another"


@pytest.mark.parametrize(
    "script",
    [
        [served.cut(100_003)],
        [served.cut(100_003), served.cut(7)],
        [served.cut(100_003), served.no_ranges],
        [served.cut(100_003, tagged=False), served.untagged],
        [served.stall(100_003, 5)],
        [served.status(503), served.status(503, Retry_After="0")],
        [served.status(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), served.silent],
        [served.length(400_009)],
        [served.cut(0), served.silent],
        [served.status(302, Location="/A.bin")],
    ],
)
def test_what_passes_is_tried_again(server, path, script):
    server.script = list(script)
    fetched(f"{server.url}/A.bin", path, sha256=hashlib.sha256(BODY).hexdigest())
    assert path.read_bytes() == BODY and alone(path)
    assert not server.script


def test_what_arrived_is_gone_on_with_and_only_the_rest_is_asked_for(server, path):
    server.script = [served.cut(100_003)] * 3
    with pytest.raises(SparsegenError, match=r"promised 300007 bytes and ended after 100003, 3 times"):
        fetched(f"{server.url}/A.bin", path)
    assert not path.exists()
    server.requests.clear()
    fetched(f"{server.url}/A.bin", path)
    assert path.read_bytes() == BODY and alone(path)
    (_, headers), *more = server.requests
    assert headers["range"] == "bytes=100003-" and headers["if-range"] == served.etag(BODY) and not more


def begun(server, path, tagged=True) -> None:
    """A partial file of BODY."""
    server.script = [served.cut(100_003, tagged)] * 3
    with pytest.raises(SparsegenError):
        fetched(f"{server.url}/A.bin", path)


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("length", [300_007, 300_011, 50_021])
def test_a_file_that_changes_between_two_requests_is_begun_anew(server, path, length, tagged):
    begun(server, path, tagged)
    other = np.random.default_rng(7019).bytes(length)
    server.files["/A.bin"] = other
    if not tagged:
        server.script = [served.untagged]
    fetched(f"{server.url}/A.bin", path, sha256=hashlib.sha256(other).hexdigest())
    assert path.read_bytes() == other and alone(path)


def test_a_continuation_that_is_of_another_file_though_it_says_it_is_not(server, path):
    begun(server, path)
    other = np.random.default_rng(7027).bytes(len(BODY))

    def wrong(request, body):
        span = f"bytes 100003-{len(other) - 1}/{len(other)}"
        request.head(206, {"Content-Range": span, "Content-Length": str(len(other) - 100_003), "ETag": '"new"'})
        request.wfile.write(other[100_003:])

    server.script = [wrong]
    fetched(f"{server.url}/A.bin", path, sha256=hashlib.sha256(BODY).hexdigest())
    assert path.read_bytes() == BODY


def test_a_partial_file_of_another_address_is_not_gone_on_with(server, path):
    begun(server, path)
    server.files["/B.bin"] = BODY[::-1]
    fetched(f"{server.url}/B.bin", path)
    assert path.read_bytes() == BODY[::-1]


def test_a_part_that_was_whole_already(server, path):
    path.parent.mkdir()
    path.with_name("A.bin.part").write_bytes(BODY)
    fetched(f"{server.url}/A.bin", path, sha256=hashlib.sha256(BODY).hexdigest())
    assert path.read_bytes() == BODY and alone(path)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (served.status(404), "HTTP 404"),
        (served.status(403), "HTTP 403"),
        (served.status(503), "HTTP 503.*3 times"),
        (served.status(429, Retry_After="3600"), "HTTP 429.*asks for 3600 s"),
        (served.status(302, Location="/A.bin"), "redirects in a loop"),
        (served.status(302, Location="file:///etc/hostname"), "redirects"),
        (served.status(302, Location="ftp://example.org/A.bin"), "redirects to ftp"),
        (served.stall(0, 5), "timed out.*3 times|connection broke.*3 times"),
        (served.drip(0.1), r"\d+ bytes in 0.4 s"),
        (served.silent, "no answer.*3 times"),
        (served.length(1 << 40), "more than the"),
        (served.status(206), "HTTP 206"),
    ],
)
def test_what_does_not_pass_is_one_error(server, path, answer, said):
    server.script = [answer] * 40
    with pytest.raises(SparsegenError, match=said) as raised:
        fetched(f"{server.url}/A.bin", path)
    assert "\n" not in str(raised.value)
    assert not path.exists()
    server.script.clear()
    fetched(f"{server.url}/A.bin", path)
    assert path.read_bytes() == BODY and alone(path)


def test_no_server(path, server):
    url = server.url.replace("127.0.0.1", "localhost").rpartition(":")[0] + ":9/A.bin"
    with pytest.raises(SparsegenError, match=r"no answer: .*3 times"):
        fetched(url, path)
    assert not list(path.parent.iterdir())
    for wrong in ("A.bin", "file:///etc/hostname", "ftp://example.org/A", "http:///A"):
        with pytest.raises(SparsegenValueError, match="no address"):
            fetched(wrong, path)


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(server, path):
    with pytest.raises(SparsegenValueError, match=r"SHA-256 of what arrived is [0-9a-f]{64}; expected 00"):
        fetched(f"{server.url}/A.bin", path, sha256="0" * 64)
    assert not list(path.parent.iterdir())


def test_a_length_that_is_too_small_is_found_by_the_check(server, path):
    server.script = [served.length(1009)]

    def check(file):
        if file.read_bytes() != BODY:
            raise SparsegenValueError(f"{file}: too short")

    with pytest.raises(SparsegenValueError, match="what arrived: too short"):
        fetched(f"{server.url}/A.bin", path, check=check)
    assert not path.exists()


def test_a_length_of_nothing(server, path):
    server.files["/empty"] = b""
    fetched(f"{server.url}/empty", path)
    assert path.read_bytes() == b""


def test_a_proxy_of_the_environment_is_used(server, path, monkeypatch):
    server.files["http://matrices.example/A.bin"] = BODY
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    fetched("http://matrices.example/A.bin", path)
    assert path.read_bytes() == BODY


def test_requests_to_one_host_are_apart(server, path, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    server.files |= {f"/{number}": b"7" * number for number in range(1, 4)}
    for number in range(1, 4):
        download.download(f"{server.url}/{number}", path.with_name(str(number)), manners=Manners(pause_s=50.0))
    assert slept[0] == 0 and all(45 < each <= 50 for each in slept[1:]) and len(slept) == 3


def test_a_longer_wait_after_each_failure(server, path, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    server.script = [served.status(503)] * 3 + [served.status(503, Retry_After="17")]
    download.download(f"{server.url}/A.bin", path, manners=Manners(attempts=6, pause_s=0.0, backoff_s=0.5))
    assert [each for each in slept if each] == [0.5, 1.0, 2.0, 17.0]


@pytest.mark.parametrize("room", [0, 9])
def test_a_full_disk_is_one_error(server, path, monkeypatch, room):
    def full(answer, file, *_):
        file.write(BODY[:room])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_copy", full)
    with pytest.raises(SparsegenError, match=r"cannot be written: No space left on device.*SPARSEGEN_HOME"):
        fetched(f"{server.url}/A.bin", path)
    assert not path.exists()


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SparsegenError, match="cannot be written"):
        fetched(f"{server.url}/A.bin", tmp_path / "file" / "A.bin")


def test_threads_that_want_the_same_file(server, path):
    server.script = [served.stall(1009, 0.2)]
    errors = []

    def ask():
        try:
            fetched(f"{server.url}/A.bin", path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and path.read_bytes() == BODY and alone(path)
    assert len(server.requests) <= 2  # the others found it made


def _killed(url: str, path) -> None:
    fetched(url, path, manners=Manners(timeout_s=60.0, pause_s=0.0))


def test_killed_in_the_middle_and_gone_on_with(server, path):
    server.script = [served.stall(200_003, 60)]
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(f"{server.url}/A.bin", path))
    process.start()
    part = path.with_name("A.bin.part")
    for _ in range(600):
        if part.exists() and part.stat().st_size == 200_003:
            break
        time.sleep(0.05)
    process.kill()
    process.join()
    assert not path.exists()
    server.requests.clear()
    fetched(f"{server.url}/A.bin", path)
    assert server.requests[0][1]["range"] == "bytes=200003-"
    assert path.read_bytes() == BODY and alone(path)
