"""A web server on this machine that misbehaves as it is told."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`; while `server.script` has answers, each request takes the next one of it instead."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, {name.lower(): text for name, text in self.headers.items()}))
        self.close_connection = True
        body = self.server.files.get(self.path)
        answer = self.server.script.pop(0) if self.server.script else honest
        with contextlib.suppress(ConnectionError):
            if body is None and answer is honest:
                status(404)(self, b"")
            else:
                answer(self, body or b"")

    def head(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.script: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.stop = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        server.shutdown()
        thread.join()
        server.server_close()


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def honest(request: Handler, body: bytes, tagged: bool = True, whole: bool = False) -> None:
    """As a good server: ranges, as long as the file is the one that was asked for."""
    asked = request.headers.get("Range")
    named = request.headers.get("If-Range")
    tags = {"ETag": etag(body)} if tagged else {}
    if asked and not whole and named in (None, etag(body)):
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            request.head(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
            return
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        request.head(206, {"Content-Range": span, "Content-Length": str(len(body) - start), **tags})
        request.wfile.write(body[start:])
        return
    request.head(200, {"Content-Length": str(len(body)), **tags})
    request.wfile.write(body)


def untagged(request: Handler, body: bytes) -> None:
    honest(request, body, tagged=False)


def no_ranges(request: Handler, body: bytes) -> None:
    honest(request, body, whole=True)


def cut(count: int, tagged: bool = True) -> Answer:
    """Only so many bytes of those that were promised."""

    def answer(request: Handler, body: bytes) -> None:
        tags = {"ETag": etag(body)} if tagged else {}
        request.head(200, {"Content-Length": str(len(body)), **tags})
        request.wfile.write(body[:count])

    return answer


def length(count: int) -> Answer:
    """All of the body, under another Content-Length."""

    def answer(request: Handler, body: bytes) -> None:
        request.head(200, {"Content-Length": str(count)})
        request.wfile.write(body)

    return answer


def stall(count: int, seconds: float) -> Answer:
    """So many bytes, and then silence."""

    def answer(request: Handler, body: bytes) -> None:
        request.head(200, {"Content-Length": str(len(body)), "ETag": etag(body)})
        request.wfile.write(body[:count])
        request.wfile.flush()
        request.server.stop.wait(seconds)

    return answer


def drip(pause: float) -> Answer:
    """A byte at a time."""

    def answer(request: Handler, body: bytes) -> None:
        request.head(200, {"Content-Length": str(len(body)), "ETag": etag(body)})
        for byte in body:
            request.wfile.write(bytes([byte]))
            request.wfile.flush()
            if request.server.stop.wait(pause):
                return

    return answer


def status(code: int, **headers: str) -> Answer:
    def answer(request: Handler, body: bytes) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        request.head(code, {"Content-Length": "0", **named})

    return answer


def page(request: Handler, body: bytes) -> None:
    text = b"<!DOCTYPE html><html><body>Please log in to this network.</body></html>"
    request.head(200, {"Content-Type": "text/html", "Content-Length": str(len(text))})
    request.wfile.write(text)


def silent(request: Handler, body: bytes) -> None:
    """Closes without a word."""


def packed(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return out.getvalue()
