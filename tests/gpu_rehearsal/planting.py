"""Trains once per planted fault on pretended devices, in processes that share a loaded torch.

`python -P -m gpu_rehearsal.planting FAULTS` reads a list of `Fault` as JSON and runs each.
"""

import hashlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

PLANTED = "planted a fault in"
REMAINING_S = 5.0
"""Seconds to wait for the other ranks once one has failed."""
LOADED = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """An edit of a file of rampcli, and a run with it.

    Attributes:
        file: path below the package, or None for a run without a fault.
        old: text that the file has once.
        new: text in its place.
        run_dir: run directory, which has a config.yaml.
        processes: number of ranks.
    """

    run_dir: str
    processes: int
    file: str | None = None
    old: str = ""
    new: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        has_failed: whether a rank failed.
        log: what the ranks printed.
        result: digest of the losses and checkpoints.
    """

    has_failed: bool
    log: str
    result: str


def run_faults(faults: Sequence[Fault], environment: dict[str, str], tests: Path) -> list[Outcome]:
    """Runs faults, one after another, in an environment with devices."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpu_rehearsal.planting"],
        input=json.dumps([asdict(fault) for fault in faults]),
        env=environment | {"PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(tests)))},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Outcome(**outcome) for outcome in json.loads(done.stdout)]


def main() -> None:
    for module in LOADED:
        importlib.import_module(module)
    print(json.dumps([asdict(_run(Fault(**fault))) for fault in json.load(sys.stdin)]))


def _run(fault: Fault) -> Outcome:
    run = Path(fault.run_dir)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    logs = [run / f"rank_{rank}.txt" for rank in range(fault.processes)]
    ranks = {_start(fault, rank, port, logs[rank]) for rank in range(fault.processes)}
    has_failed, deadline = False, None
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG)
        ranks.discard(process)
        if process and status:
            has_failed, deadline = True, time.monotonic() + REMAINING_S
        if deadline is not None and time.monotonic() > deadline:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
        time.sleep(0.02)
    return Outcome(
        has_failed=has_failed,
        log="\n".join(log.read_text() for log in logs),
        result="" if has_failed else _digest(run),
    )


def _start(fault: Fault, rank: int, port: int, log: Path) -> int:
    process = os.fork()
    if process:
        return process
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    if fault.file is not None:
        _plant(fault)
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"},
        **{"WORLD_SIZE": str(fault.processes), "LOCAL_WORLD_SIZE": str(fault.processes)},
        "MASTER_PORT": str(port),
    }
    sys.argv = ["rampcli.worker", fault.run_dir]
    try:
        runpy.run_module("rampcli.worker", run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
    finally:  # a worker that trains ends the process itself
        sys.stderr.flush()
        os._exit(1)


def _plant(fault: Fault) -> None:
    get_code = SourceFileLoader.get_code

    def get_faulty_code(loader: SourceFileLoader, name: str):
        if not loader.path.endswith(f"/rampcli/{fault.file}"):
            return get_code(loader, name)
        source = Path(loader.path).read_text(encoding="utf-8")
        assert source.count(fault.old) == 1, f"{fault.file} does not have once: {fault.old}"
        print(PLANTED, fault.file, flush=True)
        return compile(source.replace(fault.old, fault.new), loader.path, "exec")

    SourceFileLoader.get_code = get_faulty_code


def _digest(run: Path) -> str:
    """Returns a digest of the losses and of the tensors in checkpoints."""
    digest = hashlib.sha256()
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        digest.update(f"{row['loss']:.6g} {row['grad_norm']:.6g}".encode())
    for path in sorted(run.glob("checkpoints/*/*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
