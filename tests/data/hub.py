"""A file server on loopback that speaks as much of the hub's protocol as `datasets` needs to stream a dataset."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40
Repositories = dict[str, dict[str, bytes]]


class Hub(ThreadingHTTPServer):
    """Serves repositories of files; cuts the connection halfway through the first `cuts` downloads of data."""

    daemon_threads = True

    def __init__(self, repositories: Repositories, cuts: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.cuts_left = cuts
        self.revisions: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/(refs/convert/parquet|[^/]+)/(.+)", path):
            repository, revision, name = match.groups()
            self.server.revisions.add(revision)
            content = self.server.repositories.get(repository, {}).get(name)
            self._file(content) if content is not None else self._json(404, {"error": "no such file"})
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/.*)?", path):
            self._api(match[1], match[2] or "")
        else:
            self._json(404, {"error": "unknown path"})

    do_HEAD = do_GET

    def _api(self, repository: str, rest: str) -> None:
        files = self.server.repositories.get(repository)
        if files is None:
            self._json(404, {"error": "no such dataset"}, code="RepoNotFound")
        elif match := re.fullmatch(r"/tree/(refs/convert/parquet|[^/]+)/?(.*)", rest):
            self._json(200, list(_tree(files, match[2])))
        else:
            siblings = [{"rfilename": name} for name in files]
            self._json(200, {"id": repository, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})

    def _file(self, content: bytes) -> None:
        first, last = 0, len(content) - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        part = content[first : last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("content-length", str(len(part)))
        self.send_header("etag", f'"{len(content)}"')
        self.send_header("x-repo-commit", COMMIT)
        if asked:
            self.send_header("content-range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.cuts_left and len(part) > 1000:
            self.server.cuts_left -= 1
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        self.wfile.write(part)

    def _json(self, status: int, content: object, code: str = "EntryNotFound") -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-repo-commit", COMMIT)
        if status == 404:
            self.send_header("x-error-code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


def _tree(files: dict[str, bytes], folder: str) -> Iterator[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    folders = set()
    for name, content in files.items():
        if name.startswith(prefix):
            head, _, below = name.removeprefix(prefix).partition("/")
            if below:
                folders.add(prefix + head)
            else:
                yield {"type": "file", "path": name, "size": len(content), "oid": COMMIT}
    yield from ({"type": "directory", "path": path, "size": 0, "oid": COMMIT} for path in sorted(folders))


@contextmanager
def serving(repositories: Repositories, cuts: int = 0) -> Iterator[Hub]:
    hub = Hub(repositories, cuts)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
