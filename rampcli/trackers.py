"""The trackers by name."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerModule:
    """Where a tracker is.

    Attributes:
        module: module with a function `open_tracker`, which takes the run directory, the `Position`
            to continue from and the name of the run, and returns a
            `rampcli.tracking.tracker.Tracker`.
        package: optional package that it needs, a key of `rampcli.extras.EXTRAS`, or None.
    """

    module: str
    package: str | None = None


TRACKERS = {
    "tensorboard": TrackerModule(module="rampcli.tracking.tensorboard", package="tensorboard"),
    "wandb": TrackerModule(module="rampcli.tracking.wandb", package="wandb"),
}
"""Trackers by the names that `logging.trackers` accepts, apart from those of extensions."""
