"""Observers of a build."""

from rampcli.data.building.partial import Written


class Watcher:
    """Receives the progress of a build. This base class ignores it."""

    def on_phase(self, name: str, total_bytes: int) -> None:
        """Called when a pass over the inputs begins."""

    def on_progress(self, consumed_bytes: int, written: Written | None) -> None:
        """Called after each chunk.

        Args:
            consumed_bytes: bytes of the inputs read in this pass.
            written: what has been written so far, or None if this pass writes nothing.
        """

    def on_note(self, line: str) -> None:
        """Called with a decision or a warning for the user."""
