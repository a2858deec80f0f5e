"""From a configuration to a finished run: checks, the run directory, the launcher."""

import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from rampcli.config import snapshot
from rampcli.config.choices import Launcher, Resume
from rampcli.config.corpora import OF_FILES
from rampcli.config.huggingface import check_init_from
from rampcli.config.resolve import Resolved, sources_named
from rampcli.config.schema import Config
from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED, NoCheckpointError, UsageError
from rampcli.launch.failures import noting_failure
from rampcli.launch.local import LocalWorkers
from rampcli.launch.observer import Observer
from rampcli.launch.resources import claimed_gpus, gpus_wanted
from rampcli.launch.run_lock import locked
from rampcli.launch.slurm import chain
from rampcli.launch.slurm.scripts import JobScript, render
from rampcli.launch.stop_signals import noting_stop_signals
from rampcli.launch.supervise import Supervisor
from rampcli.lifeline import StopSignals
from rampcli.locks import is_held
from rampcli.run_directory import COMPLETE, PREEMPTED, Checkpoint, RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: its directory.
        status: as in state.json; "submitted" where jobs were.
        state: state.json.
        started: False where there was nothing left to do.
        exit_code: 0, or why it was interrupted.
        jobs: that were submitted to train it.
    """

    run: RunDirectory
    status: str
    state: dict[str, Any]
    started: bool
    exit_code: int
    jobs: tuple[chain.ChainedJob, ...] = ()


def run(
    resolved: Resolved,
    *,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    one_stage: bool = False,
    observer: Observer | None = None,
) -> Outcome:
    """Train on this machine, from where the run directory stands, or submit the jobs that do.

    Args:
        resolved: what to train, and its plan.
        command: the words that would do this again; the running script, if None.
        overrides: what was typed, for overrides.txt.
        one_stage: end at the next stage instead of starting it.
        observer: is told about progress.

    Raises:
        RampcliError: nothing was started, or the workers failed.
    """
    directory = RunDirectory(resolved.run_dir)
    with sources_named(resolved.config):
        if resolved.config.data.source in OF_FILES:
            from rampcli.data.sources import (
                check_files,
            )  # and with it numpy and tokenizers, which other sources can do without here

            check_files(resolved.config)
        newest = _newest_checkpoint(directory, resolved.config)
        if newest is None:
            check_init_from(resolved.config)
        gpus_wanted(resolved.config, resolved.plan)
    command_line = shlex.join(command or [sys.executable, *sys.argv])
    state = directory.read_state() or {"status": COMPLETE}
    if (
        newest is not None
        and resolved.plan.is_complete(newest.consumed_samples)
        and state["status"] == COMPLETE
    ):
        return Outcome(run=directory, status=COMPLETE, state=state, started=False, exit_code=0)
    launches_jobs = resolved.config.launch.launcher is Launcher.slurm
    with sources_named(resolved.config):
        scripts = (
            render(resolved, directory, consumed_samples=newest.consumed_samples if newest else 0)
            if launches_jobs
            else []
        )
    with ExitStack() as held:
        held.enter_context(sources_named(resolved.config))
        held.enter_context(locked(directory))
        gpus = held.enter_context(claimed_gpus(resolved.config, resolved.plan))
        if launches_jobs or shutil.which(
            "squeue"
        ):  # elsewhere no job of the run starts; and it could not while this process holds the run
            chain.refuse_living(directory)
        if newest is None and not is_held(
            directory.workers_lock
        ):  # workers that live go on writing there
            _keep_old_metrics(directory, observer or Observer())
        describe(directory, resolved, overrides)
        _announce(directory, resolved, newest, command_line)
        if launches_jobs:
            return _submit(directory, scripts[:1] if one_stage else scripts)
        return _supervise(resolved, directory, gpus, observer or Observer(), one_stage=one_stage)


def _submit(directory: RunDirectory, scripts: Sequence[JobScript]) -> Outcome:
    with noting_failure(directory):
        jobs = chain.submit(directory, scripts).jobs
    return Outcome(
        run=directory,
        status="submitted",
        state=directory.read_state() or {},
        started=True,
        exit_code=0,
        jobs=jobs,
    )


def _supervise(
    resolved: Resolved,
    directory: RunDirectory,
    gpus: Sequence[str],
    observer: Observer,
    *,
    one_stage: bool,
) -> Outcome:
    with noting_stop_signals() as signals:
        supervisor = Supervisor(
            resolved=resolved,
            run=directory,
            start=partial(
                LocalWorkers, directory, devices=resolved.config.trainer.devices, gpus=gpus
            ),
            observer=observer,
            signals=signals,
            gpus=len(gpus),
            starts_ahead=not one_stage,
        )
        state = supervisor.go_through(one_stage=one_stage)
    return Outcome(
        run=directory,
        status=state["status"],
        state=state,
        started=True,
        exit_code=_exit_code(state, signals),
    )


def _exit_code(state: dict[str, Any], signals: StopSignals) -> int:
    if signals.signal == signal.SIGINT:
        return EXIT_CTRL_C
    return 0 if signals.signal is None and state["status"] != PREEMPTED else EXIT_INTERRUPTED


def _newest_checkpoint(directory: RunDirectory, config: Config) -> Checkpoint | None:
    """The checkpoint that the run goes on from, as `resume` wants it.

    Raises:
        UsageError: `resume=never` and there is one.
        NoCheckpointError: `resume=must` and there is none.
        ForeignCheckpointError: it belongs to another configuration.
    """
    found = directory.complete_checkpoints()
    if not found:
        if config.resume is Resume.must:
            raise NoCheckpointError(
                f"resume=must, and {directory.path} holds no checkpoint",
                remedy="resume=auto, or the run_dir= of a run",
            )
        return None
    if config.resume is Resume.never:
        raise UsageError(
            f"resume=never, and {directory.path} holds the checkpoint of step {found[-1].step}",
            keys=("resume",),
            remedy="another name= or run_dir=, or resume=auto",
        )
    snapshot.check_settings(
        found[-1].manifest["settings"], snapshot.identity(config), run_dir=directory.path
    )
    return found[-1]


def describe(directory: RunDirectory, resolved: Resolved, overrides: Sequence[str]) -> None:
    """Write down what the run is: what workers need to train it, and what people want to know of it."""
    directory.claim()
    for folder in (directory.logs, directory.checkpoints):
        directory.make_folder(folder)
    directory.replace(directory.config, snapshot.to_yaml(resolved.config))
    directory.replace(
        directory.path / "overrides.txt", "".join(f"{override}\n" for override in overrides)
    )
    directory.write_json(directory.path / "plan.json", resolved.plan.to_json())


def _keep_old_metrics(directory: RunDirectory, observer: Observer) -> None:
    """Warn that a run that had trained begins anew, because it has no checkpoint, and keep the rows of its steps."""
    if (aside := directory.set_metrics_aside()) is not None:
        reason = f"{directory.checkpoints} holds no checkpoint: the run starts at step 0 again; the rows of its old steps are in {aside}"
        directory.append_event("fault", reason=reason)
        observer.on_event({"event": "fault", "reason": reason})


def _announce(
    directory: RunDirectory, resolved: Resolved, newest: Checkpoint | None, command: str
) -> None:
    consumed_samples = newest.consumed_samples if newest else 0
    stage = resolved.plan.stage_at(consumed_samples)
    directory.write_state(
        {
            "status": "running",
            "step": newest.step if newest else 0,
            "consumed_samples": consumed_samples,
            "stage": stage.stage,
            "next": {
                "stage": stage.stage,
                "global_batch_size": stage.global_batch_size,
                "num_nodes": stage.num_nodes,
                "command": command,
            },
        }
    )
