"""A server that understands what wandb sends about runs, and keeps it in memory."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "lab"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


class Server(ThreadingHTTPServer):
    """The server.

    Attributes:
        history: lines of each run, by its id.
        summary: last summary of each run.
        inputs: what wandb said last when it created or resumed each run.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.history: dict[str, list[str]] = {}
        self.summary: dict[str, str] = {}
        self.inputs: dict[str, dict[str, Any]] = {}

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Returns the data that answer a GraphQL query."""
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self._upsert(variables), "inserted": True}}
        if "RunResumeStatus" in query:
            return {"model": self._model(variables)}
        if "viewer" in query:
            viewer = {"id": "1", "entity": ENTITY, "username": "me", "flags": "{}"}
            return {"viewer": viewer | {"teams": {"edges": []}}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": [], "cliVersionInfo": "{}"}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        return {}

    def receive(self, run: str, files: dict[str, Any]) -> None:
        """Adds what a run sends: lines of its history, with the number of the first of them."""
        if HISTORY in files:
            lines = self.history.setdefault(run, [])
            lines[files[HISTORY]["offset"] :] = files[HISTORY]["content"]
        if SUMMARY in files:
            self.summary[run] = files[SUMMARY]["content"][-1]

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = variables["name"]
        self.inputs[run] = self.inputs.get(run, {}) | {
            name: value for name, value in variables.items() if value is not None
        }
        bucket = {"id": f"id of {run}", "name": run, "displayName": run, "config": "{}"}
        project = {"id": "2", "name": variables["project"], "entity": {"id": "3", "name": ENTITY}}
        return bucket | {"project": project, "historyLineCount": len(self.history.get(run, []))}

    def _model(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        run = variables["name"]
        if run not in self.inputs:
            return None
        lines = self.history.get(run, [])
        bucket = {
            "id": f"id of {run}",
            "name": run,
            "displayName": run,
            "summaryMetrics": self.summary.get(run, "{}"),
            "logLineCount": 0,
            "historyLineCount": len(lines),
            "eventsLineCount": 0,
            "historyTail": json.dumps(lines[-1:]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }
        return {"id": "2", "name": "p", "entity": {"id": "3", "name": ENTITY}, "bucket": bucket}


class Handler(BaseHTTPRequestHandler):
    """Answers GraphQL queries and takes file streams."""

    server: Server

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            asked = json.loads(content)
            answer = {"data": self.server.answer(asked["query"], asked.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            self.server.receive(self.path.split("/")[-2], json.loads(content).get("files") or {})
        reply = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """Runs a server in a thread."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
