"""An error that ends a run is said in state.json too, for who looks there later."""

from collections.abc import Iterator
from contextlib import contextmanager

from rampcli.errors import RampcliError
from rampcli.run_directory import RunDirectory


@contextmanager
def noting_failure(directory: RunDirectory) -> Iterator[None]:
    """Let state.json say that the run failed where the block raises an error; a worker's own words, where it knew why, stay."""
    try:
        yield
    except RampcliError as error:
        state = directory.read_state() or {}
        if state.get("status") != "failed" or not state["error"]["understood"]:
            directory.change_status("failed", error=error.facts() | {"understood": True})
        raise
