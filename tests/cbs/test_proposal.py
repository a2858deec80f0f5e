from math import sqrt

import pytest

from rampcli.cbs.proposal import coupling_words, plan_alternative
from rampcli.config.layers import as_recipe
from rampcli.planning.resolve import resolve

RUN = (
    *("model.rampup_batch_size=null", "model.global_batch_size=8", "data.micro_batch_size=4"),
    *("trainer.num_nodes=1", "optim.optimizer=adamw", "optim.warmup_steps=0"),
    *("phases.a.until=4096", "phases.b.until=8192"),
)


@pytest.mark.parametrize(("length", "factor"), [(128, sqrt(2)), (64, 1)])
def test_a_phase_whose_batch_stays_keeps_its_learning_rate(planned, length, factor):
    """A phase with the schedule of the run follows its batch only by a coupling, in tokens."""
    words = (*RUN, f"phases.b.data.sequence_length={length}")
    run = resolve(as_recipe(planned("llama3_tiny", *words).config))
    found = plan_alternative(
        "larger",
        ["phases.b.model.global_batch_size=16"],
        run,
        [[], []],
        couplings=coupling_words(run.config, None),
    ).found
    for before, after, expected in zip(run.phases, found.phases, (1, factor), strict=True):
        sample = before.plan.first.samples + 1024
        rates = [
            one.rate.at(sample, global_batch_size=one.plan.global_batch_size)
            for one in (before, after)
        ]
        assert rates[1] / rates[0] == pytest.approx(expected, rel=2e-3)
