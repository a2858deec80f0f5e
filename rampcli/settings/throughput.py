"""Settings of the throughput that a plan assumes."""

from rampcli.settings.attributes import Section
from rampcli.settings.facts import NOTHING, any_phase
from rampcli.settings.fields import Keyed, keyed, setting, settings_class


@keyed("throughput.")
@settings_class(kw_only=True)
class ThroughputConfig(Section):
    """Throughput of one GPU, for the hours in a plan.

    `rampup.efficiency` takes precedence, then the first of these that is set. These are for a GPU
    that does not wait for others of a pipeline; a plan adds that time.
    """

    samples_per_s_per_gpu: Keyed[float | None] = setting(
        None,
        "Throughput of one GPU. `null`: estimated from `mfu`.",
        any_phase(NOTHING),
        unit="samples/s",
        above=0,
    )
    mfu: Keyed[float | None] = setting(
        None,
        "Share of `trainer.peak_tflops` that training reaches. `null`: no estimate.",
        any_phase(NOTHING),
        above=0,
        at_most=1,
    )
