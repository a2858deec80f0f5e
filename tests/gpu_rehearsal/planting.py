"""Trains once per planted fault on pretended devices."""

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

from ranks import run_program, run_ranks, stop_ranks

PLANTED = "planted a fault in"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """An edit of a file of rampcli.

    Attributes:
        file: path below the package, or None for a run without a fault.
        old: text that the file has once.
        new: text in its place.
    """

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


def run_with(fault: Fault, run: Path, *, processes: int) -> Outcome:
    """Trains a run with a fault, in new processes that have loaded torch."""
    stop_ranks()
    try:
        run_ranks(processes, _train, fault, str(run), logs=run / "logs")
        has_failed = False
    except AssertionError:
        has_failed = True
    finally:
        stop_ranks()
    return Outcome(
        has_failed=has_failed,
        log="\n".join(log.read_text() for log in sorted((run / "logs").glob("rank_*.txt"))),
        result="" if has_failed else _digest(run),
    )


def _train(fault: Fault, run_dir: str) -> None:
    """Trains as a rank that imports rampcli anew, with the fault."""
    if fault.file is not None:
        _plant(fault)
    for module in [name for name in sys.modules if name.partition(".")[0] == "rampcli"]:
        del sys.modules[module]
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    run_program("rampcli.worker", run_dir)


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
