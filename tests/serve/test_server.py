import gzip
import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from processes import PATIENCE_S
from rampcli.errors import UsageError
from rampcli.files.locks import hold
from rampcli.launch.status import read_status
from rampcli.report.page_files import SCRIPTS, STYLESHEETS
from rampcli.runs.directory import RunDirectory
from rampcli.serve import server as page_server
from rampcli.serve.runs_folder import RunsFolder
from rampcli.serve.server import DEFAULT_PORT, MOST_CONNECTIONS, MOST_OF_A_CLIENT, PageServer
from recorded_runs import write_run
from run_files import metrics_row, state


@contextmanager
def serving(folder, host="127.0.0.1", port=None):
    with PageServer(RunsFolder(folder), host=host, port=port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "mine")
    write_run(folder / "a b&c=%2e#?")
    return folder


@pytest.fixture(scope="module")
def server(runs):
    with serving(runs) as server:
        yield server


@pytest.fixture(scope="module")
def open_server(runs):
    with serving(runs, host="0.0.0.0") as server:
        yield server


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.server_address[1], timeout=PATIENCE_S
    )
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def json_of(server, path):
    answer, content = ask(server, path)
    assert answer.status == 200, content
    return json.loads(content)


def test_the_page_its_files_and_its_data_are_served(server):
    assert b"<title>" in ask(server, "/")[1]
    for name in (*STYLESHEETS, *SCRIPTS):
        assert ask(server, f"/{name}")[0].status == 200
    assert {run["name"] for run in json_of(server, "/api/runs")["runs"]} == {"mine", "a b&c=%2e#?"}
    assert json_of(server, "/api/run/mine?axis=tokens")["data"]["rows"] == 40


def test_a_run_of_any_name_is_found_by_its_encoded_name(server):
    found = json_of(server, "/api/run/a%20b%26c%3D%252e%23%3F")
    assert found["data"]["name"] == "a b&c=%2e#?"


def test_what_the_page_has_is_not_sent_again(server, runs):
    version = json_of(server, "/api/run/mine")["version"]
    assert json_of(server, f"/api/run/mine?known={version}") == {
        "version": version,
        "data": None,
        "quiet": None,
    }
    with (runs / "mine" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics_row(step=41, consumed_samples=400)) + "\n")
    deadline = time.monotonic() + PATIENCE_S
    found = {"data": None}
    while found["data"] is None and time.monotonic() < deadline:
        found = json_of(server, f"/api/run/mine?known={version}")
    assert found["data"]["last"]["step"] == 41


def test_the_time_left_and_the_quiet_are_those_of_status_while_a_run_trains(server, runs):
    run = RunDirectory(runs / "a b&c=%2e#?")
    path = f"/api/run/{quote(run.path.name)}"
    assert json_of(server, path)["data"]["run_left_s"] is None
    run.write_state(state(step=40))
    with hold(run.lock):
        answer, status = json_of(server, path), read_status(run)
        again = json_of(server, f"{path}?known={answer['version']}")
    found = answer["data"]
    assert status.standstill is not None
    assert answer["quiet"].startswith("no step for ")
    assert again["quiet"].startswith("no step for ")
    assert found["run_left_s"] == status.run_left_s > 0
    assert found["stage_left_s"] == status.stage_left_s > 0


def test_answers_are_zipped_if_the_browser_can_unzip(server):
    answer, content = ask(server, "/page.js", Accept_Encoding="gzip, br")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(content) == ask(server, "/page.js")[1]


def test_head_answers_without_content(server):
    answer, content = ask(server, "/page.js", "HEAD")
    assert (answer.status, content) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server, method):
    answer, _ = ask(server, "/api/runs", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret", "/%2e%2e/secret", "/page.html", "/uplot/README.md", "//etc/passwd"),
        *("/api/run/..", "/api/run/%2e%2e", "/api/run/mine%2fmetrics.jsonl", "/api/run/%00"),
        *("/api/run/%ff", "/api/run/", "/api/", "/mine/config.yaml"),
    ],
)
def test_no_other_path_leads_to_a_file(server, path):
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize(
    "query",
    ["axis=loss", "low=nan", "high=inf", "low=x", "buckets=0", "buckets=x", "known=x"],
)
def test_a_wrong_query_is_refused(server, query):
    assert ask(server, f"/api/run/mine?{query}")[0].status == 400


def test_a_query_for_very_many_points_gets_fewer(server):
    assert json_of(server, "/api/run/mine?buckets=999999999999")["data"]["series"]


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:80"])
def test_a_tunnel_reaches_the_page(server, host):
    assert ask(server, "/", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "", "evil@", "[::1"),
        *("127.0.0.1:80:evil", "localhost:evil", "evil@localhost", "localhost/x", "[::1]x"),
    ],
)
def test_a_name_that_another_host_gives_this_machine_is_refused(server, host):
    assert ask(server, "/api/runs", Host=host)[0].status == 403


def test_every_answer_forbids_scripts_of_others(server):
    for path in ("/", "/api/runs", "/none"):
        headers = ask(server, path)[0].headers
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_other_machines_need_the_token(open_server):
    token = open_server.token
    assert len(token) >= 32
    for path in ("/", "/api/runs", "/wrong/api/runs", f"/{token[:-1]}/", f"/{token}x/", "/%00/"):
        assert ask(open_server, path)[0].status == 403
    assert ask(open_server, f"/{token}/", Host="other.example")[0].status == 200
    assert json_of(open_server, f"/{token}/api/runs")["runs"]
    assert f"/{token}/" in open_server.url


def test_an_address_without_its_last_slash_is_completed(open_server):
    answer, _ = ask(open_server, f"/{open_server.token}")
    assert answer.headers["Location"] == f"/{open_server.token}/"


def test_the_default_port_gives_way_and_a_wanted_one_does_not(runs):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            pass  # another server has it
        else:
            taken.listen()
        with serving(runs) as server:
            assert server.server_address[1] != DEFAULT_PORT
            with pytest.raises(UsageError, match="cannot listen"):
                PageServer(RunsFolder(runs), host="127.0.0.1", port=server.server_address[1])


@pytest.mark.parametrize(
    ("host", "reason"),
    [("no such host", "no address"), ("192.0.2.1", "not an address of this machine")],
)
def test_a_host_that_is_not_this_machine_is_refused(runs, host, reason):
    with pytest.raises(UsageError, match=reason):
        PageServer(RunsFolder(runs), host=host, port=None)


def test_connections_that_never_ask_do_not_keep_viewers_away(server):
    address, slow = ("127.0.0.1", server.server_address[1]), []
    viewer = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        for _ in range(2 * MOST_CONNECTIONS):
            slow.append(socket.create_connection(address, timeout=PATIENCE_S))
            slow[-1].sendall(b"G")
            if len(slow) % 50 == 0:  # a viewer who asks again and again keeps its connection
                json_of(server, "/api/runs")  # connections are taken in order: none is left behind
                viewer.request("GET", "/api/runs")
                answer = viewer.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True)
        assert json_of(server, "/api/runs")["runs"]
        assert slow[0].recv(1) == b""  # the first ones are closed
    finally:
        for connection in (*slow, viewer):
            connection.close()


def test_connections_of_one_client_do_not_close_those_of_another(server):
    address, flood = ("127.0.0.1", server.server_address[1]), []
    try:
        other = socket.create_connection(
            address, timeout=PATIENCE_S, source_address=("127.0.0.2", 0)
        )
        flood = [
            socket.create_connection(address, timeout=PATIENCE_S)
            for _ in range(MOST_OF_A_CLIENT + 1)
        ]
        assert flood[0].recv(1) == b""  # the limit of its own client
        other.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200 OK")
    finally:
        for connection in (*flood, other):
            connection.close()


def test_a_request_that_comes_in_drops_is_given_up(runs, monkeypatch):
    def drip(connection):
        while True:  # each byte is in time, the request is not
            connection.sendall(b"G")
            time.sleep(0.02)

    monkeypatch.setattr(page_server, "REQUEST_S", 0.2)
    with (
        serving(runs) as server,
        socket.create_connection(server.server_address[:2]) as slow,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        drip(slow)


def test_an_answer_that_takes_long_is_not_given_up(runs, monkeypatch):
    with serving(runs) as server:
        listed = server.runs.listed

        def listed_slowly():
            monkeypatch.setattr(page_server, "REQUEST_S", 0.0)
            time.sleep(0.2)
            return listed()

        monkeypatch.setattr(server.runs, "listed", listed_slowly)
        assert json_of(server, "/api/runs")["runs"]


def test_a_folder_that_cannot_be_read_is_an_answer_with_its_reason(server, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "runs")

    monkeypatch.setattr(RunsFolder, "runs", refuse)
    answer, content = ask(server, "/api/runs")
    assert (answer.status, b"Permission denied" in content) == (500, True)
