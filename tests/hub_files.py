"""A cache as huggingface_hub lays it out, and a server that answers as the hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FIRST, SECOND = "1" * 40, "2" * 40
"""Commits."""
Files = Mapping[str, bytes]


def fill_cache(home: Path, name: str, commit: str, files: Files, *, missing: tuple[str, ...] = ()):
    """Adds a commit of a model to the cache in the folder `HF_HOME`; `main` is this commit.

    Args:
        home: value of HF_HOME.
        name: ORG/NAME.
        commit: 40 hexadecimal digits.
        files: contents by name.
        missing: files of which the hub has said that the model has none.
    """
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    for folder in ("blobs", "refs", f"snapshots/{commit}", f".no_exist/{commit}"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    for file, content in files.items():
        blob = hashlib.sha256(content).hexdigest()
        (repository / "blobs" / blob).write_bytes(content)
        (repository / "snapshots" / commit / file).symlink_to(f"../../blobs/{blob}")
    for file in missing:
        (repository / ".no_exist" / commit / file).touch()


class Hub:
    """Models that a server on this machine offers.

    Attributes:
        endpoint: value of HF_ENDPOINT.
        models: files of each commit, by ORG/NAME; the last commit is `main`.
        asked: method and path of each request.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.models: dict[str, dict[str, Files]] = {}
        self.asked: list[tuple[str, str]] = []

    def find(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the content of ORG/NAME/resolve/REVISION/FILE."""
        name, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if name not in self.models:
            gated = name.startswith("gated/")
            code = "GatedRepo" if gated else "RepoNotFound"
            return 403 if gated else 404, {"X-Error-Code": code}, b""
        commits = self.models[name]
        commit = [*commits][-1] if revision == "main" else revision
        if commit not in commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        facts = {"X-Repo-Commit": commit}
        if file not in commits[commit]:
            return 404, facts | {"X-Error-Code": "EntryNotFound"}, b""
        content = commits[commit][file]
        return 200, facts | {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Runs a server of models on the loopback interface."""

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.asked.append((self.command, self.path))
            status, headers, content = hub.find(self.path)
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def as_json(content: object) -> bytes:
    return json.dumps(content).encode()
