"""What a command changes in the settings of a run that it resumes or shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rampcli.config import snapshot
from rampcli.errors import UsageError
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.differences import differing_settings
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config

SMALLEST_JUMP = 0.01
"""Relative difference of two learning rates that is worth a warning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Differences between the settings that a run was trained with and those of a command.

    Attributes:
        settings: earlier and present value of each setting that differs, as they are typed.
        jump: what happens to the learning rate of the last step that is saved, or None if it stays.
        unreadable: why the earlier settings are not known, or None.
    """

    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    jump: str | None = None
    unreadable: str | None = None


def changes(directory: RunDirectory, resolved: Resolved, newest: Checkpoint | None) -> Changes:
    """Compares the settings of a command with those in the run directory.

    Without a checkpoint, nothing is compared: the run starts anew.
    """
    if newest is None:
        return Changes()
    try:
        earlier = snapshot.read(directory.config)
    except UsageError as error:
        return Changes(unreadable=f"it is not known which settings change: {error.message}")
    return Changes(
        settings=differing_settings([dict(leaves(each)) for each in (earlier, resolved.config)]),
        jump=_jump(earlier, resolved, newest),
    )


def _jump(earlier: Config, resolved: Resolved, newest: Checkpoint) -> str | None:
    """Returns how the learning rate of the newest checkpoint's step differs, or None."""
    consumed_samples = newest.consumed_samples
    if consumed_samples == 0:
        return None
    try:
        before = _rate(run_plan(earlier, consumed_samples=consumed_samples), consumed_samples)
    except UsageError as error:  # for instance, a decay style of a file that is not named now
        return f"the learning rate under the earlier settings is not known: {error.message}"
    now = _rate(resolved, consumed_samples)
    if abs(now - before) <= SMALLEST_JUMP * before:
        return None
    return (
        f"the learning rate jumps: step {newest.step} had {before:.2e}, and has {now:.2e} in the"
        " schedule of the changed settings. name=NEW"
        f" model.init_from={newest.path.parents[1]} trains the weights with a schedule of its own"
    )


def _rate(resolved: Resolved, consumed_samples: int) -> float:
    """Returns the learning rate of the step that ends at `consumed_samples`."""
    batch = resolved.plan.ramp.global_batch_size_at(consumed_samples - 1)
    return resolved.trained_by(consumed_samples).rate.at(consumed_samples, global_batch_size=batch)
