from dataclasses import replace
from math import lcm
from statistics import fmean

import pytest

from rampcli import llm
from rampcli.cbs.point import FEWEST_STEPS, SHARE, BranchPoint, Terms
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import run_plan

WORDS = (
    "model.rampup_batch_size=[4,4,80]",
    "model.global_batch_size=8",
    "trainer.max_samples=400",
    "trainer.num_nodes=2",
)
MULTIPLES = [1, 2, 3]
PHASES = (
    *("phases.a.until=samples:80", "phases.b.until=samples:240", "phases.c.until=samples:400"),
    *("phases.b.data.sequence_length=256", "phases.c.model.global_batch_size=16"),
    *("phases.c.optim.lr=1e-3", "phases.c.schedule.decay_style=linear"),
)
EXPONENT = 0.5


def point_of(consumed_samples, *words, unless=()):
    """A point of a run with these words, and with those of `unless` that have other keys."""
    typed = {word.partition("=")[0]: word for word in (*WORDS, *unless, *words)}
    config = resolve(apply_overrides(llm.from_factory("llama3_tiny"), [*typed.values()])).config
    return BranchPoint.at(run_plan(config, consumed_samples=consumed_samples), consumed_samples)


def branches_of(point, tmp_path, *, decays=False):
    samples = point.samples(MULTIPLES, tokens=1)
    for multiple in MULTIPLES:
        branch, _ = point.branch(
            multiple,
            Terms(samples=samples, exponent=EXPONENT, decays=decays),
            run_dir=tmp_path / f"multiple={multiple}",
            read_files=lambda _: replace(point.run.phases[0].files, val_samples=1000),
        )
        yield multiple, samples, branch


@pytest.mark.parametrize("consumed_samples", [40, 80, 160, 400])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("schedule.batch_coupling=sqrt",),
        ("schedule.lr_factors=[1,1.5]",),
        ("schedule.beta2_coupling=half_life", "schedule.weight_decay_coupling=timescale"),
        ("optim.min_lr=1e-4", "schedule.decay_style=wsd"),
        PHASES,
        (*PHASES, "schedule.batch_coupling=sqrt", "phases.b.schedule.begin=continue"),
        (*PHASES, "phases.b.model.rampup_batch_size=[8,8,80]", "phases.b.optim.lr=1e-3"),
    ],
)
def test_a_branch_differs_in_batch_and_rate_only(consumed_samples, words, tmp_path):
    point = point_of(consumed_samples, *words, unless=("optim.min_lr=1e-5",))
    batch, run = point.global_batch_size, point.run
    for multiple, samples, branch in branches_of(point, tmp_path):
        plan = branch.plan
        stage = plan.stage_at(consumed_samples)
        assert stage.global_batch_size == multiple * batch
        steps = point.stage.first_step + (consumed_samples - point.stage.first_sample) // batch
        assert plan.end_step == steps + samples // (multiple * batch)
        assert plan.end_sample == consumed_samples + samples
        assert stage.world_size == point.stage.world_size
        assert stage.micro_batch_size == point.stage.micro_batch_size
        phase, trained = point.phase, branch.phases[-1]
        assert [one.name for one in branch.phases[:-1]] == [
            one.name for one in run.phases[: phase.plan.number]
        ]
        assert trained.plan.sequence_length == phase.plan.sequence_length
        assert [one for one in plan.extents if one.first_sample < phase.plan.first.samples] == [
            one for one in run.plan.extents if one.first_sample < phase.plan.first.samples
        ]
        values = phase.couplings().at(phase.rate, point._step_ends_at, global_batch_size=batch)
        for end in (consumed_samples + multiple * batch, consumed_samples + samples):
            found = trained.couplings().at(trained.rate, end, global_batch_size=multiple * batch)
            assert found.lr == pytest.approx(values.lr * multiple**EXPONENT)
        optim, own = phase.config.optim, trained.config.optim
        assert own.beta2 == pytest.approx(values.beta2 or optim.beta2)
        assert own.weight_decay == pytest.approx(values.weight_decay or optim.weight_decay)
        assert trained.couplings().beta2_coupling == "none"


@pytest.mark.parametrize("words", [(), ("optim.min_lr=1e-4", "schedule.decay_style=wsd")])
def test_the_mean_rate_of_a_branch_is_half_of_its_first(words, tmp_path):
    point = point_of(160, *words, unless=("optim.min_lr=1e-5",))
    for multiple, samples, branch in branches_of(point, tmp_path, decays=True):
        batch = multiple * point.global_batch_size
        rates = [
            branch.phases[0].rate.at(end, global_batch_size=batch)
            for end in range(160 + batch, 160 + samples + 1, batch)
        ]
        lr = point.lr * multiple**EXPONENT
        assert fmean(rates) == pytest.approx(lr * (1 + len(rates) ** -2) / 2)
        assert rates[-1] == pytest.approx(lr / len(rates))
        assert rates[0] - rates[1] == pytest.approx(rates[-2] - rates[-1])


def test_branches_train_a_share_of_the_run_in_whole_steps():
    point = point_of(160)
    short = point.samples([1], tokens=None)
    assert short == FEWEST_STEPS * point.global_batch_size
    for multiples in ([1, 2, 4, 8], [1, 3, 5]):
        unit = lcm(*multiples) * point.global_batch_size
        for tokens in (1, 10**5, 10**6 + 1):
            samples = point.samples(multiples, tokens=tokens)
            assert samples % unit == 0
            assert 0 <= samples * point.run.plan.sequence_length - tokens < unit * 128
    long = point_of(160, "trainer.max_samples=800000")
    assert long.samples([1], tokens=None) == SHARE * 800_000


def test_a_learning_rate_of_zero_is_refused():
    with pytest.raises(UsageError, match="is 0"):
        point_of(400, "optim.min_lr=0")


def test_a_run_without_held_out_samples_is_refused(tmp_path):
    point = point_of(160, "data.split=[1,0,0]")
    with pytest.raises(UsageError, match="held-out"):
        point.branch(
            1,
            Terms(samples=80, exponent=EXPONENT, decays=True),
            run_dir=tmp_path,
            read_files=lambda _: replace(point.run.phases[0].files, val_samples=0),
        )
