"""The web server of the live page: read-only, and reachable from this machine alone by default."""

import errno
import gzip
import hmac
import ipaddress
import json
import math
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from rampcli.errors import UsageError, reason_of
from rampcli.report.page_data import DEFAULT_BUCKETS, X_AXES, View
from rampcli.report.page_files import live_page, static_files
from rampcli.serve.runs_folder import FollowedRuns, RunsFolder

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 7267
"""The port is RAMP on the keys of a telephone."""
REQUEST_S = 30.0
"""A connection that has not sent a whole request for this long is closed, and so is one that does
not take its answer in this time."""
MOST_CONNECTIONS, MOST_OF_A_CLIENT = 128, 64
"""If there are more, or more from one address, the one that was answered longest ago is closed."""
TOKEN_BYTES = 24
LEAST_ZIPPED_BYTES = 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request."""

    status: HTTPStatus
    kind: str = "text/plain; charset=utf-8"
    content: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Connection:
    """A connection of a viewer.

    Attributes:
        client: its address.
        waits_since: time of the monotonic clock since which it owes a request, or infinity while it
            is answered.
    """

    client: str
    waits_since: float


class PageServer(ThreadingHTTPServer):
    """Serves the page and the data of runs.

    Args:
        host: address or name to listen on. If other machines can reach it, the page needs a token.
        port: port to listen on. None takes the default, or a free one if that is in use.

    Raises:
        UsageError: the host is not an address of this machine, or the port is in use.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, folder: RunsFolder, *, host: str, port: int | None) -> None:
        self.runs = FollowedRuns(folder)
        self.token = None if is_this_machine(host) else secrets.token_urlsafe(TOKEN_BYTES)
        self.files = static_files() | {"": ("text/html; charset=utf-8", live_page())}
        self._connections: dict[socket.socket, Connection] = {}
        self._lock = threading.Lock()
        family, address = _address(host)
        self.address_family = family
        try:
            super().__init__((address, DEFAULT_PORT if port is None else port), Handler)
        except OSError as error:
            if port is None and error.errno == errno.EADDRINUSE:
                super().__init__((address, 0), Handler)
                return
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(
                    f"--host {host}: not an address of this machine",
                    remedy=f"--host {DEFAULT_HOST}",
                ) from error
            raise UsageError(
                f"cannot listen on port {port or DEFAULT_PORT} of {host}: {error.strerror}",
                remedy="another --port, or none to take a free one",
            ) from error

    @property
    def url(self) -> str:
        """Address of the page, with its token if it needs one."""
        host, port = self.server_address[:2]
        name = str(host)
        if ipaddress.ip_address(name).is_unspecified:
            name = socket.gethostname()
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{port}/" + ("" if self.token is None else f"{self.token}/")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread. Connections that take long to ask do not keep others away."""
        client = str(client_address[0])
        with self._lock:
            here = self._connections
            own = [one for one, facts in here.items() if facts.client == client]
            for among, most in ((own, MOST_OF_A_CLIENT), (list(here), MOST_CONNECTIONS)):
                if len(among) >= most:
                    self._close(min(among, key=lambda one: here[one].waits_since))
                    break
            here[request] = Connection(client, time.monotonic())
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Closes connections whose request takes too long. It is called twice a second."""
        with self._lock:
            late = time.monotonic() - REQUEST_S
            for one in [
                one for one, facts in self._connections.items() if facts.waits_since < late
            ]:
                self._close(one)

    def _close(self, connection: socket.socket) -> None:
        del self._connections[connection]
        with suppress(OSError):  # it has been closed
            connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    @contextmanager
    def answering(self, request: socket.socket) -> Iterator[None]:
        """Counts the time that a connection waits for a request from the end of its answer."""
        self._note(request, math.inf)
        yield
        self._note(request, time.monotonic())

    def _note(self, request: socket.socket, waits_since: float) -> None:
        with self._lock:
            if request in self._connections:
                self._connections[request].waits_since = waits_since

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers the requests of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores viewers that vanish while they are answered."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rampcli", ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answers GET, and HEAD without content."""
        with self.server.answering(self.connection):
            self._send(self._answer())

    do_HEAD = do_GET

    def _refuse_method(self) -> None:
        self.close_connection = True  # the body of the request was not read
        self._send(Reply(HTTPStatus.METHOD_NOT_ALLOWED, headers=(("Allow", "GET, HEAD"),)))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = _refuse_method

    def log_message(self, *_: Any) -> None:
        """Prints nothing: the terminal belongs to whoever started the server."""

    def _answer(self) -> Reply:
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        path = parts.path.removeprefix("/")
        if self.server.token is None:
            if not is_this_machine(_host_of(self.headers.get("Host", ""))):
                return _text(HTTPStatus.FORBIDDEN, "This page is for this machine alone.")
        else:
            token, slash, path = path.partition("/")
            if not hmac.compare_digest(token.encode(), self.server.token.encode()):
                return _text(HTTPStatus.FORBIDDEN, "Use the whole address that was printed.")
            if not slash:
                location = (("Location", f"/{self.server.token}/"),)
                return Reply(HTTPStatus.PERMANENT_REDIRECT, headers=location)
        if path in self.server.files:
            kind, content = self.server.files[path]
            return Reply(HTTPStatus.OK, kind, content)
        if path == "api/runs":
            try:
                return _json({"runs": self.server.runs.listed()})
            except OSError as error:
                return _text(HTTPStatus.INTERNAL_SERVER_ERROR, reason_of(error))
        if path.startswith("api/run/"):
            name = unquote(path.removeprefix("api/run/"), errors="surrogateescape")
            return self._run(name, parts.query)
        return _text(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _run(self, name: str, query: str) -> Reply:
        """Answers with the data of a run."""
        try:
            view, known = _parse(query)
        except ValueError as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        try:
            found = self.server.runs.data(name, view, known=known)
        except Exception as error:  # the page still shows the other runs
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, f"{name}: {reason_of(error)}")
        if found is None:
            return _text(HTTPStatus.NOT_FOUND, "There is no such run.")
        return _json(found)

    def _send(self, answer: Reply) -> None:
        content, headers = answer.content, [*HEADERS.items(), *answer.headers]
        if len(content) >= LEAST_ZIPPED_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content, compresslevel=3)
            headers.append(("Content-Encoding", "gzip"))
        self.send_response(answer.status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def is_this_machine(host: str) -> bool:
    """Returns whether a host names this machine and cannot be reached from another one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d+)?")
"""An address of IPv6 in brackets, or a name or an address of IPv4, and perhaps a port."""


def _host_of(header: str) -> str:
    """Returns the host in a Host header, without its port, or nothing if it is something else."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found[1] or found[2]


def _address(host: str) -> tuple[socket.AddressFamily, str]:
    """Returns the family and the address of a host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host {host}: no address of this name", remedy=f"--host {DEFAULT_HOST}"
        ) from error
    return family, str(address[0])


def _parse(query: str) -> tuple[View, int | None]:
    """Returns the view that a query asks for, and the version that the page has."""
    given = {name: values[-1] for name, values in parse_qs(query, max_num_fields=20).items()}
    axis = given.get("axis", X_AXES[0])
    if axis not in X_AXES:
        raise ValueError(f"axis is not one of {', '.join(X_AXES)}")
    low, high = (float(given[name]) if name in given else None for name in ("low", "high"))
    if any(one is not None and not math.isfinite(one) for one in (low, high)):
        raise ValueError("low and high must be finite")
    buckets = int(given.get("buckets", DEFAULT_BUCKETS))
    if buckets < 1:
        raise ValueError("buckets must be 1 or more")
    known = given.get("known")
    view = View(axis=axis, low=low, high=high, buckets=buckets)
    return view, None if known is None else int(known)


def _json(content: Any) -> Reply:
    # allow_nan=False: a browser would refuse NaN, and the page with it.
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Reply(HTTPStatus.OK, "application/json", text.encode())


def _text(status: HTTPStatus, text: str) -> Reply:
    return Reply(status, content=text.encode(errors="replace"))
