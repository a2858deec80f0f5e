"""From a configuration to a finished run: checks, the run directory, the launcher."""

import shlex
import sys
from collections.abc import Sequence

from rampcli.checkpoint.compatibility import check_compatible
from rampcli.checkpoint.starting_weights import check_starting_weights
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.config.schema import Config
from rampcli.errors import NoCheckpointError, UsageError
from rampcli.launch.changes import Changes, changes
from rampcli.launch.files import read_corpora
from rampcli.launch.observer import Observer, Observers
from rampcli.launch.protocol import JobScript, Launch, Launcher, Outcome, launcher_of, launchers
from rampcli.launch.run_lock import lock_run
from rampcli.launch.trackers import Trackers, check_packages
from rampcli.locks import is_held
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import COMPLETE, RunDirectory, event_row
from rampcli.runs.manifest import Checkpoint, complete_checkpoints


def run(
    resolved: Resolved,
    *,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    one_stage: bool = False,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Trains a run from its newest checkpoint, or submits the jobs that will train it.

    Args:
        command: words of the command that resumes the run; None means the running script, if there
            is one.
        overrides: command-line overrides, recorded in overrides.txt.
        one_stage: stop at the next stage boundary.
        observers: receive progress, if the workers run on this machine.

    Raises:
        RampcliError: nothing was started, or the workers failed.
    """
    directory, launcher = RunDirectory(resolved.run_dir), launcher_of(resolved.config)
    newest, scripts = check(resolved)
    words = command or _running_script()
    changed = changes(directory, resolved, newest)
    if is_complete(resolved, newest):
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
        lock_run(directory),
        launcher.reserve_gpus(resolved) as gpus,
    ):
        _refuse_active_jobs(directory, launcher)
        # Orphaned workers still append to metrics.jsonl.
        if newest is None and not is_held(directory.workers_lock):
            _set_old_metrics_aside(directory, observers)
        if newest is not None:
            _record_changes(directory, changed, newest, observers)
        describe(directory, resolved, overrides)
        _announce(directory, resolved, newest, words)
        return launcher.start(
            Launch(
                resolved=resolved,
                directory=directory,
                scripts=scripts[:1] if one_stage else scripts,
                gpus=gpus,
                observers=observers,
                one_stage=one_stage,
            )
        )


def check(resolved: Resolved) -> tuple[Checkpoint | None, list[JobScript]]:
    """Checks what a run needs before anything is written.

    Returns:
        The newest checkpoint, or None, and the scripts of the jobs that train the rest.

    Raises:
        RampcliError: the run cannot start.
    """
    directory, launcher = RunDirectory(resolved.run_dir), launcher_of(resolved.config)
    with sources_named(resolved.config):
        corpus = check_corpora(resolved)
        newest = _newest_checkpoint(directory, resolved.config, corpus)
        if newest is None:
            check_starting_weights(resolved.config)
        launcher.check(resolved)
        if launcher.interpreter(resolved.config) == sys.executable:
            check_packages(resolved.config.logging.trackers)
        consumed_samples = newest.consumed_samples if newest else 0
        return newest, launcher.scripts(resolved, directory, consumed_samples)


def is_complete(resolved: Resolved, newest: Checkpoint | None) -> bool:
    """Returns whether a run with this newest checkpoint has nothing left to train."""
    if newest is None or not resolved.plan.is_complete(newest.consumed_samples):
        return False
    state = RunDirectory(resolved.run_dir).read_state()
    return state is None or state["status"] == COMPLETE


def check_corpora(resolved: Resolved) -> str | None:
    """Checks that the corpora, if any, can be read, and that prompts can be continued.

    Corpora that were opened while the configuration was resolved are not read again.

    Returns:
        The fingerprint of the training corpora, or None if they were not opened.

    Raises:
        RampcliError: they cannot.
    """
    config, files = resolved.config, resolved.files
    if not files.opened:
        files = read_corpora(config)
    if config.generate.prompts:
        from rampcli.data.prompts import check_text_prompts

        check_text_prompts(config)
    return files.fingerprint


def _refuse_active_jobs(directory: RunDirectory, launcher: Launcher) -> None:
    """Checks that no job of the run is active, whatever launcher submitted it."""
    # A queue that this machine cannot ask starts no job here, and a job of the run that starts
    # elsewhere finds the run locked by this process.
    for other in launchers().values():
        if other is launcher or other.can_ask():
            other.refuse_active(directory)


def _newest_checkpoint(
    directory: RunDirectory, config: Config, corpus: str | None
) -> Checkpoint | None:
    """Returns the checkpoint that the run resumes from, as `resume` allows, or None.

    Its configuration must be the run's, and its corpora too if their fingerprint is known here.
    """
    found = complete_checkpoints(directory)
    if not found:
        if config.resume == "must":
            raise NoCheckpointError(
                f"resume=must, but {directory.path} has no checkpoint",
                remedy="resume=auto, or the run_dir= of a run that has a checkpoint",
            )
        return None
    if config.resume == "never":
        raise UsageError(
            f"resume=never, but {directory.path} has a checkpoint of step {found[-1].step}",
            keys=("resume",),
            remedy="another name= or run_dir=, or resume=auto",
        )
    check_compatible(found[-1], settings=snapshot.identity(config), corpus=corpus)
    return found[-1]


def describe(directory: RunDirectory, resolved: Resolved, overrides: Sequence[str]) -> None:
    """Writes config.yaml, overrides.txt and plan.json, and creates the folders of the run."""
    directory.claim()
    for folder in (directory.logs, directory.checkpoints):
        directory.make_folder(folder)
    directory.replace(directory.config, snapshot.to_yaml(resolved.config))
    directory.replace(
        directory.path / "overrides.txt", "".join(f"{override}\n" for override in overrides)
    )
    directory.write_json(directory.path / "plan.json", resolved.plan.to_json())


def _running_script() -> list[str] | None:
    """Returns the words that run this script again, or None in a notebook or a prompt."""
    is_script = getattr(sys.modules["__main__"], "__file__", None) is not None
    return [sys.executable, *sys.argv] if is_script else None


def _set_old_metrics_aside(directory: RunDirectory, observers: Sequence[Observer]) -> None:
    """Keeps the metrics of a run whose checkpoints are gone, and warns that it starts over."""
    if (aside := directory.set_metrics_aside()) is not None:
        reason = (
            f"{directory.checkpoints} has no checkpoint: the run starts again at step 0;"
            f" its old metrics are kept in {aside}"
        )
        row = event_row("fault", reason=reason)
        directory.append_row(directory.events, row)
        for observer in observers:
            observer.on_event(row)


def _record_changes(
    directory: RunDirectory, changed: Changes, newest: Checkpoint, observers: Sequence[Observer]
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
