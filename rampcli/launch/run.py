"""From a configuration to a finished run: what changes, the run directory, the launcher."""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import UsageError
from rampcli.files.locks import is_held
from rampcli.launch.observer import Observer, Observers
from rampcli.launch.protocol import (
    Changes,
    Launch,
    Outcome,
    launcher_of,
    launchers,
    scripts_to_submit,
)
from rampcli.launch.run_lock import lock_run
from rampcli.launch.start_checks import check
from rampcli.launch.trackers import Trackers
from rampcli.machine.lifeline import StopSignals
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.differences import differing_settings
from rampcli.runs.directory import COMPLETE, RunDirectory, event_row
from rampcli.runs.manifest import Checkpoint, complete_checkpoints
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config

SMALLEST_JUMP = 0.01
"""Relative difference of two learning rates that is worth a warning."""


def run(
    resolved: Resolved,
    *,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    one_stage: bool = False,
    one_phase: bool = False,
    observers: Sequence[Observer] = (),
    signals: StopSignals | None = None,
) -> Outcome:
    """Trains a run from its newest checkpoint, or submits the jobs that will train it.

    Args:
        command: words of the command that resumes the run; None means the running script, if there
            is one.
        overrides: command-line overrides, recorded in overrides.txt.
        one_stage: stop at the next stage boundary.
        one_phase: stop at the end of the phase.
        observers: receive progress, if the workers run on this machine.
        signals: stop signals that the main thread collects, for a run in another thread.

    Raises:
        RampcliError: nothing was started, or the workers failed.
    """
    directory, launcher = RunDirectory(resolved.run_dir), launcher_of(resolved.config)
    newest, scripts = check(resolved)
    is_script = getattr(sys.modules["__main__"], "__file__", None) is not None
    words = command or ([sys.executable, *sys.argv] if is_script else None)
    changed = changed_settings(directory, resolved, newest)
    if is_trained(resolved, newest):
        observer = Observers(observers, stop=lambda: None)
        with Trackers(directory, resolved.config.logging.trackers, observer):
            pass  # they log what they have not logged yet
        return Outcome(
            run=directory,
            status=COMPLETE,
            state=directory.read_state() or {"status": COMPLETE},
            started=False,
            exit_code=0,
            observer_error=observer.error,
            changes=changed,
        )
    with (
        sources_named(resolved.config),
        lock_run(directory, has_signals=signals is not None),
        launcher.reserve_gpus(resolved) as gpus,
    ):
        # A queue that this machine cannot ask starts no job here, and a job of the run that starts
        # elsewhere finds the run locked by this process.
        for other in launchers().values():
            if other is launcher or other.can_ask():
                other.refuse_active(directory)
        # Orphaned workers still append to metrics.jsonl. Others may have saved after the search.
        if not is_held(directory.workers_lock) and not complete_checkpoints(directory):
            _set_old_metrics_aside(directory, observers)
        if newest is not None:
            _record_changes(directory, changed, newest, observers)
        write_run_files(directory, resolved, overrides)
        _announce(directory, resolved, newest, words)
        return launcher.start(
            Launch(
                resolved=resolved,
                directory=directory,
                scripts=scripts_to_submit(
                    resolved, scripts, one_stage=one_stage, one_phase=one_phase
                ),
                gpus=gpus,
                observers=observers,
                one_stage=one_stage,
                one_phase=one_phase,
                signals=signals,
            )
        )


def changed_settings(
    directory: RunDirectory, resolved: Resolved, newest: Checkpoint | None
) -> Changes:
    """Compares the settings of a command with those in the run directory.

    Without a checkpoint, nothing is compared: the run starts anew.
    """
    if newest is None:
        return Changes()
    try:
        earlier = snapshot.read(directory.config)
    except UsageError as error:
        return Changes(unreadable=f"it is not known which settings change: {error.message}")
    return Changes(
        settings=differing_settings([dict(leaves(each)) for each in (earlier, resolved.config)]),
        jump=_jump(earlier, resolved, newest),
    )


def _jump(earlier: Config, resolved: Resolved, newest: Checkpoint) -> str | None:
    """Returns how the learning rate of the newest checkpoint's step differs, or None."""
    consumed_samples = newest.consumed_samples
    if consumed_samples == 0:
        return None
    try:
        before = _rate(run_plan(earlier, consumed_samples=consumed_samples), consumed_samples)
    except UsageError as error:  # for instance, a decay style of a file that is not named now
        return f"the learning rate under the earlier settings is not known: {error.message}"
    now = _rate(resolved, consumed_samples)
    if abs(now - before) <= SMALLEST_JUMP * before:
        return None
    return (
        f"the learning rate jumps: step {newest.step} had {before:.2e}, and has {now:.2e} in the"
        " schedule of the changed settings. name=NEW"
        f" model.init_from={newest.path.parents[1]} trains the weights with a schedule of its own"
    )


def _rate(resolved: Resolved, consumed_samples: int) -> float:
    """Returns the learning rate of the step that ends at `consumed_samples`."""
    batch = resolved.plan.ramp.global_batch_size_at(consumed_samples - 1)
    return resolved.trained_by(consumed_samples).rate.at(consumed_samples, global_batch_size=batch)


def is_trained(resolved: Resolved, newest: Checkpoint | None) -> bool:
    """Returns whether a run with this newest checkpoint has nothing left to train."""
    if newest is None or not resolved.plan.is_complete(newest.consumed_samples):
        return False
    state = RunDirectory(resolved.run_dir).read_state()
    return state is None or state["status"] == COMPLETE


def write_run_files(directory: RunDirectory, resolved: Resolved, overrides: Sequence[str]) -> None:
    """Writes config.yaml, overrides.txt and plan.json, and creates the folders of the run."""
    directory.claim()
    for folder in (directory.logs, directory.checkpoints):
        directory.make_folder(folder)
    directory.replace(directory.config, snapshot.to_yaml(resolved.config))
    directory.replace(
        directory.path / "overrides.txt", "".join(f"{override}\n" for override in overrides)
    )
    directory.write_json(directory.path / "plan.json", resolved.plan.to_json())


def _set_old_metrics_aside(directory: RunDirectory, observers: Sequence[Observer]) -> None:
    """Keeps the metrics of a run whose checkpoints are gone, and warns that it starts over."""
    if (aside := directory.set_metrics_aside()) is not None:
        reason = (
            f"{directory.checkpoints} has no checkpoint: the run starts again at step 0;"
            f" its old metrics are kept in {aside}"
        )
        _report([event_row("fault", reason=reason)], directory, observers)


def _record_changes(
    directory: RunDirectory,
    changed: Changes,
    newest: Checkpoint,
    observers: Sequence[Observer],
) -> None:
    """Records the settings that change, because config.yaml will have only their new values."""
    place = {"step": newest.step, "consumed_samples": newest.consumed_samples}
    rows = [
        event_row("change", **place, setting=key, old=old, new=new)
        for key, (old, new) in changed.settings.items()
    ]
    if changed.jump is not None:
        rows.append(event_row("schedule", **place, reason=changed.jump))
    if changed.unreadable is not None:
        rows.append(event_row("fault", reason=changed.unreadable))
    _report(rows, directory, observers)


def _report(
    rows: Sequence[dict[str, Any]], directory: RunDirectory, observers: Sequence[Observer]
) -> None:
    """Appends events, and tells the observers, who do not follow the file yet."""
    for row in rows:
        directory.append_row(directory.events, row)
        for observer in observers:
            observer.on_event(row)


def _announce(
    directory: RunDirectory,
    resolved: Resolved,
    newest: Checkpoint | None,
    command: Sequence[str] | None,
) -> None:
    """Writes state.json as it is before the first step."""
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
                "command": None if command is None else shlex.join(command),
            },
        }
    )
