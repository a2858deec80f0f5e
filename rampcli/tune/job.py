"""A search as a job, on nodes of a cluster: `python -m rampcli.tune.job FOLDER`.

FOLDER is the folder `tune` of the run directory. It is a run directory itself: it holds the
configuration, the job and its log.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import EXIT_INTERRUPTED, RampcliError, UsageError
from rampcli.files.records import read_json
from rampcli.launch.protocol import Job, launcher_of
from rampcli.launch.run_lock import JOB_WAIT_S
from rampcli.machine.lifeline import catch_stop_signals
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.tune.results import differing_conditions
from rampcli.tune.run import Search, folder_of, lock_search
from rampcli.tune.trial import RANK, Trials
from rampcli.tune.trial_files import EFFORT, Effort

OPTIONS_SHAPE = {
    "exhaustive": bool,
    "effort": EFFORT,
    "conditions?": {},
}
"""Shape of options.json. The conditions are those of the command that submits the job. So the
command finds what the job has found, even if the node has other versions of packages."""


def submit_search(search: Search, report: Callable[[str], None]) -> list[Job]:
    """Submits a job that searches on the nodes of the run's largest stage.

    Args:
        report: receives what becomes of earlier results.

    Raises:
        UsageError: the run is in use, or a job of the run or of the search is in the queue.
        RampcliError: the job was refused.
    """
    resolved, run, folder = search.resolved, search.directory, folder_of(search.resolved)
    launcher = launcher_of(resolved.config)
    with lock_search(run):
        for directory in (run, folder):  # a job that waits does not hold the lock
            launcher.refuse_active(directory)
        script = launcher.search_script(resolved, folder)
        search.begin(report)
        folder.change_status("submitted")
        options = {
            "exhaustive": search.exhaustive,
            "effort": asdict(search.effort),
            "conditions": search.conditions,
        }
        folder.write_json(folder.path / "options.json", options)
        return launcher.submit(folder, [script])


def search_in_queue(asked: Search) -> Search:
    """Returns the search of the job in the queue, which may have another effort.

    Raises:
        UsageError: the job searches under other conditions.
    """
    folder = folder_of(asked.resolved)
    found = search_of(folder)
    if changed := differing_conditions(found.conditions, asked.conditions):
        raise UsageError(
            f"the job in the queue searches under other conditions ({', '.join(changed)})",
            remedy=f"wait for it, or rampcli cancel {folder.path}; or another run_dir=",
        )
    return found


def raise_failure(resolved: Resolved) -> None:
    """Raises the error of the last job, once: the next call submits another job.

    Raises:
        RampcliError: the job failed.
    """
    folder = folder_of(resolved)
    state = folder.read_state()
    if state is not None and state["status"] == "failed":
        folder.change_status("reported")
        raise RampcliError(
            f"the job of the search failed: {state['error']['message']} (log: {folder.logs})",
            remedy=state["error"]["remedy"] or "the same command, which submits another job",
        )


def search_of(folder: RunDirectory) -> Search:
    """Returns the search that a job was submitted for, with what it has found.

    Raises:
        DamagedFileError: a file of the search is damaged.
    """
    options = read_json(folder.path / "options.json", OPTIONS_SHAPE)
    return Search(
        run_plan(snapshot.read(folder.config)),
        Effort(**options["effort"]),
        exhaustive=options["exhaustive"],
        conditions=options.get("conditions"),
    )


def main() -> None:
    """Searches, and writes the outcomes to tune.json."""
    folder = RunDirectory(Path(sys.argv[1]))
    try:
        code = _search(folder)
    except RampcliError as error:
        _report(str(error))
        code = error.exit_code
    sys.exit(code)


def _search(folder: RunDirectory) -> int:
    with catch_stop_signals() as signals, folder.recording_failure():
        config = snapshot.read(folder.config)
        launcher = launcher_of(config)
        if launcher.is_cancelled(folder):
            return 0
        resolved = run_plan(config)
        run = RunDirectory(resolved.run_dir)
        with lock_search(run, wait_s=JOB_WAIT_S), sources_named(config):
            search = search_of(folder)
            trials = Trials(
                resolved=resolved,
                run=run,
                start=launcher.rank_starter(resolved, RANK),
                signals=signals,
                effort=search.effort,
            )
            complete = search.continue_with(trials.attempt, _report)
    return 0 if complete else EXIT_INTERRUPTED


def _report(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
