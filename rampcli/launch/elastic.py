"""Elastic agents (torchrun), one per node, all on this host: they go on without a node that is lost, and with it again once it is back."""

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rampcli.launch.workers import WORKER, Change, Workers, node_environment, reserve_port, start_process
from rampcli.run_directory import STAGE_IS_OVER, RunDirectory, Tail

RENDEZVOUS = "rampcli.engine.rendezvous"
FOREVER_S = 1_000_000
MEETING = {
    "is_host": 0,
    "join_timeout": FOREVER_S,
    "last_call_timeout": 2,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 4,
    "read_timeout": 60,
}
"""How agents meet; times in seconds. One that was silent for four is lost, and those that are left wait two more for others."""


VARIABLES = {
    # Otherwise the first agent tells others its address once only, and those that come later wait for it in vain.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
}


class ElasticAgents(Workers):
    """Agents, and the process where they meet. The agents start workers anew wherever one crashes or a node comes or goes.

    An agent's workers die with it.
    """

    def __init__(
        self,
        run_dir: Path,
        log: Path,
        *,
        num_nodes: int,
        min_nodes: int,
        max_restarts: int,
        devices: int,
        gpus: Sequence[str],
        grace_s: float,
    ) -> None:
        """Start `num_nodes` agents of `devices` workers each; what they print goes to `log`.

        Args:
            run_dir: what to train.
            log: for all of them.
            num_nodes: agents.
            min_nodes: with fewer the agents wait for more.
            max_restarts: after how many crashes, and lost nodes, the supervisor gives up.
            devices: workers of each agent.
            gpus: of all of them.
            grace_s: how long an agent lets its workers save.
        """
        self.run_dir, self.log, self.gpus, self.grace_s = run_dir, log, gpus, grace_s
        self.num_nodes, self.devices = num_nodes, devices
        self.min_nodes = min(min_nodes, num_nodes)
        self.max_restarts = max_restarts
        self.run = RunDirectory(run_dir)
        self.events = Tail(self.run.events)
        self.events.skip()
        self.back_at = dict[int, float]()
        self.is_stopping = False
        self.over_since: float | None = None
        self.have_joined = self.have_failed = self.is_accounted_for = False
        reserved_port = reserve_port()
        self.port = reserved_port.getsockname()[1]
        super().__init__([self.start(node) for node in range(num_nodes)], reserved_port)
        self.rendezvous = start_process([sys.executable, "-m", RENDEZVOUS, str(self.port)], log)

    def start(self, node: int) -> subprocess.Popen[bytes]:
        """Start the agent of a node, which counts from 0."""
        environment = node_environment(node, num_nodes=self.num_nodes, devices=self.devices, gpus=self.gpus)
        environment |= {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(self.grace_s)), **VARIABLES}
        # To an agent a node that is lost is a crash, and one that comes back may be another. What crashes more often than the supervisor
        # has noticed does so before it can say anything.
        most = 2 * (self.max_restarts + 1)
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nproc-per-node={self.devices}",
            f"--nnodes={self.min_nodes}:{self.num_nodes}",
            f"--max-restarts={most}",
            "--rdzv-backend=c10d",
            "--rdzv-id=stage",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            f"--rdzv-conf={','.join(f'{key}={value}' for key, value in MEETING.items())}",
            "--local-addr=127.0.0.1",
        ]
        return start_process([*torchrun, "-m", WORKER, str(self.run_dir)], self.log, environment)

    def exit_code(self) -> int | None:
        """None while an agent lives, and the run has not come to a point where they are to end."""
        if self.rendezvous.poll() is not None:
            return self.rendezvous.returncode or 1
        codes = [process.poll() for process in self.processes]
        if None not in codes:
            return next((code for code in codes if code), 0)
        state = self._state()
        if state["status"] == "failed" and state["error"]["understood"]:
            return 1
        if state["status"] in STAGE_IS_OVER:  # agents wait long for one that was lost just then
            self.over_since = self.over_since or time.monotonic()
            return 0 if time.monotonic() > self.over_since + self.lost_s else None
        return None

    def change(self) -> Change | None:
        """As it says there. Starts nodes that are due to come back."""
        state = self._state()
        if self.is_stopping or state["status"] in STAGE_IS_OVER:
            return None
        for node in [node for node, at in self.back_at.items() if time.monotonic() >= at]:
            del self.back_at[node]
            self.processes[node] = self.start(node)
        lost = [node for node, process in enumerate(self.processes) if process.poll() is not None and node not in self.back_at]
        self.back_at |= dict.fromkeys(lost, math.inf)
        self.is_accounted_for |= bool(lost)
        begin_anew, crash = self._what_workers_say()
        if state["status"] == "failed" and not self.have_failed and not begin_anew:
            begin_anew = self.have_failed = True
            crash = None if self.is_accounted_for else state["error"]["message"]
            self.is_accounted_for = True
        if not (lost or begin_anew):
            return None
        return Change(begin_anew=begin_anew, crash=crash, lost=self._describe(lost) if lost else None)

    def bring_back(self, wait_s: float) -> None:
        """As it says there."""
        for node in [node for node, at in self.back_at.items() if at == math.inf]:
            self.back_at[node] = time.monotonic() + wait_s

    def ask_to_stop(self) -> None:
        """As it says there; nobody is started again then."""
        self.is_stopping = True
        super().ask_to_stop()

    def end(self) -> None:
        """As it says there; with the process where the agents met."""
        super().end()
        self.rendezvous.kill()
        self.rendezvous.wait()

    def _what_workers_say(self) -> tuple[bool, str | None]:
        """Whether they have joined each other anew, and what they crashed of, where that is not known yet."""
        joined, crash = False, None
        for row in self.events.rows():
            if row["event"] == "stop":
                self.is_accounted_for = True
            elif row["event"] == "join":
                if self.have_joined and not self.is_accounted_for:
                    crash = "they ended without a word"
                joined = self.have_joined = True
                self.have_failed = self.is_accounted_for = False
        return joined, crash

    def _describe(self, lost: Sequence[int]) -> str:
        living = self.num_nodes - len(self.back_at)
        numbers = " and ".join(f"node {node} (exit code {self.processes[node].returncode})" for node in lost)
        if living < self.min_nodes:
            return f"lost {numbers}; the {living} left wait for it, with launch.min_nodes={self.min_nodes}"
        return f"lost {numbers}; the {living} left go on without it"

    def _state(self) -> dict[str, Any]:
        return self.run.read_state() or {"status": "running"}
