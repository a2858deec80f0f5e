"""Records in state.json why a run failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from rampcli.errors import RampcliError
from rampcli.runs.directory import RunDirectory


@contextmanager
def record_failure(directory: RunDirectory) -> Iterator[None]:
    """Sets the status in state.json to "failed" if the block raises an error.

    An error that a worker has already recorded, and understood, is kept.
    """
    try:
        yield
    except Exception as error:
        known = (
            error
            if isinstance(error, RampcliError)
            else RampcliError(f"{type(error).__name__}: {error}")
        )
        state = directory.read_state() or {}
        if state.get("status") != "failed" or not state["error"]["understood"]:
            directory.change_status("failed", error=known.facts() | {"understood": known is error})
        raise
