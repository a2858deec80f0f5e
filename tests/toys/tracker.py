"""A toy tracker: a line per point in trackers/toy.txt."""


class Toy:
    """Writes lines."""

    def __init__(self, run, _position, _name):
        self.facts, self.logged = {}, 0
        self._file = run.open_to_append(run.trackers / "toy.txt")

    def log_config(self, settings):
        """Writes the settings."""
        self._file.write(f"{settings['name']}\n".encode())

    def log(self, metrics, step, *, time):  # noqa: ARG002
        """Writes a point."""
        self._file.write(f"{step} {metrics.get('train/loss')}\n".encode())

    def flush(self):
        """Writes what was logged to disk."""
        self._file.flush()
        return True

    def close(self):
        """Closes the file."""
        self._file.close()
