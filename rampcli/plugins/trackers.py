"""The trackers by name."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerClass:
    """Where a tracker is.

    Attributes:
        name: MODULE:CLASS of a `rampcli.tracking.tracker.Tracker`. It takes the run directory, the
            `Position` to continue from, and the name of the run.
        package: optional package that it needs, a key of `rampcli.plugins.extras.EXTRAS`, or None.
    """

    name: str
    package: str | None = None


TRACKERS = {
    "tensorboard": TrackerClass(
        name="rampcli.tracking.tensorboard:TensorBoard", package="tensorboard"
    ),
    "wandb": TrackerClass(name="rampcli.tracking.wandb:WeightsAndBiases", package="wandb"),
}
"""Trackers by the names that `logging.trackers` accepts, apart from those of extensions.

To add a tracker: an entry here, and a module of `rampcli/tracking` with a class as
`rampcli/tracking/tracker.py:Tracker`.
"""
