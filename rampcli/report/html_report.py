"""Writes the page of some runs as one file, which needs no server and no network."""

import time
from collections.abc import Sequence
from pathlib import Path

from rampcli.guarded_folder import replace_file
from rampcli.report.page_data import View, run_data
from rampcli.report.page_files import report_page
from rampcli.runs.directory import RunDirectory
from rampcli.runs.followed_run import FollowedRun

BUCKETS = 2000
"""Points per curve. A report cannot fetch more when a reader zooms, so it has more than a page."""


def write_report_html(runs: Sequence[RunDirectory], path: Path) -> None:
    """Writes a report about runs, with their data, as an HTML file.

    A run whose files are damaged is shown with its error, and with what was read before it.

    Args:
        runs: the run directories.
        path: file to write or replace.

    Raises:
        UsageError: the folder of `path` is reached through a link below it.
        OSError: the file cannot be written.
    """
    now = time.time()
    found = []
    for name, directory in zip(_names(runs), runs, strict=True):
        run = FollowedRun(name, directory)
        run.read()
        found.append(run_data(run, View(buckets=BUCKETS)))
    title = ", ".join(data["name"] for data in found)
    replace_file(path, report_page(found, title=title, facts={"made": now}))


def _names(runs: Sequence[RunDirectory]) -> list[str]:
    """Returns the names of the folders, or their paths if two have the same name."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]
