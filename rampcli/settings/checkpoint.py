"""Settings for saving a run."""

from rampcli.settings.attributes import Section
from rampcli.settings.facts import NOTHING, any_phase, whole_run
from rampcli.settings.fields import Keyed, keyed, setting, settings_class


@keyed("checkpoint.")
@settings_class(kw_only=True)
class CheckpointConfig(Section):
    """When checkpoints are saved, and how many are kept."""

    every_steps: Keyed[int | None] = setting(
        None,
        "Interval between checkpoints. Processes also save before they end: at a boundary with new"
        " processes, on a signal and at the end of the run. `null`: only then.",
        any_phase(NOTHING),
        unit="optimiser steps",
        at_least=1,
    )
    keep_last: Keyed[int] = setting(
        2, "Number of checkpoints to keep.", whole_run(NOTHING), unit="checkpoints", at_least=1
    )
    async_: Keyed[bool] = setting(
        False,
        "Continue training while a checkpoint is written. Needs memory on each host for a copy of"
        " what its processes save.",
        whole_run(NOTHING),
    )
