"""Trains a run: `python -m rampcli.launch.toy.job RUN_DIR`."""

import sys
from pathlib import Path

from rampcli.launch.toy.launcher import LAUNCHER

from rampcli.config import snapshot
from rampcli.launch.observer import Observer
from rampcli.launch.run_lock import lock_run
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import worker_program
from rampcli.machine.lifeline import catch_stop_signals
from rampcli.planning.run_plan import run_plan
from rampcli.runs.directory import RunDirectory

directory = RunDirectory(Path(sys.argv[1]))
with lock_run(directory), catch_stop_signals() as signals:
    resolved = run_plan(snapshot.read(directory.config))
    Supervisor(
        resolved=resolved,
        run=directory,
        start=LAUNCHER.rank_starter(resolved, worker_program(resolved.config)),
        observer=Observer(),
        signals=signals,
    ).run_stages(one_stage=False)
