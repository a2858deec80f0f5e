"""Records in state.json why a run failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from rampcli.errors import RampcliError
from rampcli.run_directory import RunDirectory


@contextmanager
def record_failure(directory: RunDirectory) -> Iterator[None]:
    """Sets the status in state.json to "failed" if the block raises a RampcliError.

    An error that a worker has already recorded, and understood, is kept.
    """
    try:
        yield
    except RampcliError as error:
        state = directory.read_state() or {}
        if state.get("status") != "failed" or not state["error"]["understood"]:
            directory.change_status("failed", error=error.facts() | {"understood": True})
        raise
