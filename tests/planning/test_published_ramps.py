import shlex

import pytest

from rampcli import llm
from rampcli.batch.step_schedule import from_step_schedule
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.planning.published_ramps import PublishedRamp, published_ramp, published_ramps
from rampcli.planning.resolve import resolve

RAMPS = published_ramps()
PLANNED = [name for name, ramp in RAMPS.items() if ramp.unpublished is None]


def planned(ramp: PublishedRamp):
    """Returns the plan of a ramp's words, as `rampcli plan` reads them."""
    option, factory, *words = shlex.split(" ".join(ramp.words()))
    assert option == "--factory"
    return resolve(apply_overrides(llm.from_factory(factory), words)).plan


def steps(plan):
    return [(stage.global_batch_size, stage.steps) for stage in plan.stages]


def test_at_least_twenty_ramps_have_the_facts_that_a_reader_needs():
    assert len(RAMPS) >= 20
    for ramp in RAMPS.values():
        assert all((ramp.model, ramp.source, ramp.optimizer)), ramp.name
        assert ramp.certainty in ("code", "paper", "secondary")
        assert [ramp.schedule, ramp.ramp, ramp.unpublished].count(None) == 2, ramp.name
        assert (ramp.ramp is None) == (ramp.batch is None), ramp.name
        assert ramp.unpublished is not None or ramp.sequence_length, ramp.name


@pytest.mark.parametrize("name", PLANNED)
def test_the_words_of_a_ramp_plan_its_batches_and_its_end(name):
    ramp, plan = RAMPS[name], planned(RAMPS[name])
    assert plan.ramp == ramp.sizes
    assert plan.sequence_length == ramp.sequence_length
    assert (plan.end_sample is None) == (ramp.end is None)
    assert [stage.first_step for stage in plan.stages] == [
        stage.first_step for stage in ramp.stages
    ]


@pytest.mark.parametrize("name", PLANNED)
def test_with_samples_of_half_the_length_a_ramp_has_the_same_tokens_per_batch_and_step(name):
    ramp = RAMPS[name]
    shorter = ramp.at_length(ramp.sequence_length // 2)
    plan, other = planned(ramp), planned(shorter)
    assert [stage.global_batch_size for stage in other.stages] == [
        2 * stage.global_batch_size for stage in plan.stages
    ]
    assert [stage.first_step for stage in other.stages] == pytest.approx(
        [stage.first_step for stage in plan.stages], abs=1
    )
    assert other.end_step == plan.end_step


def test_palm_takes_exactly_its_published_steps():
    assert steps(planned(RAMPS["palm_540b"])) == [
        (512, 50_000),
        (1024, 65_000),
        (2048, 140_000),
    ]


def test_nemotron_15b_has_its_published_ranks_and_days():
    plan = planned(RAMPS["nemotron4_15b"])
    assert [stage.data_parallel_size for stage in plan.stages] == [96, 192, 288]
    # The paper has 0.8, 0.4 and 11.9 days. The words have one MFU, that of the last stage.
    days = [plan.stage_s(stage) / 86_400 for stage in plan.stages]
    assert days[-1] == pytest.approx(11.9, rel=0.03)
    assert sum(days) == pytest.approx(0.8 + 0.4 + 11.9, rel=0.03)


def test_bloom_ramps_to_2048_in_steps_of_16():
    plan = planned(RAMPS["bloom_176b"])
    assert [stage.global_batch_size for stage in plan.stages] == list(range(192, 2049, 16))
    assert plan.stages[-1].first_sample == pytest.approx(9_765_625, abs=2048)


def test_the_critical_batch_run_of_olmo_grows_at_its_published_tokens():
    plan = planned(RAMPS["olmo_1b_critical"])
    assert [(s.global_batch_size, s.first_sample * 4096) for s in plan.stages] == [
        (1024, 0),
        (2048, 167_772_160_000),
        (4096, 503_316_480_000),
    ]
    assert [stage.steps for stage in plan.stages[:2]] == [40_000, 40_000]


def test_minimax_01_grows_from_16m_to_128m_tokens():
    ramp = RAMPS["minimax_01"]
    tokens = [stage.global_batch_size * ramp.sequence_length for stage in planned(ramp).stages]
    assert tokens == [2**24, 2**25, 2**26, 2**27]
    assert steps(planned(ramp))[:3] == [(2048, 4113), (4096, 21_488), (8192, 58_264)]


def test_the_schedule_of_gpt_3_in_megatron_takes_the_fewest_steps_that_reach_its_tokens():
    taken = steps(planned(RAMPS["gpt3_megatron"]))
    assert taken[:2] == [(16, 73_243), (320, 3663)]
    assert [size for size, _ in taken] == [16, 320, 624, 928, 1232, 1536]
    assert sum(count for _, count in taken) == 500_000


def test_a_length_that_does_not_divide_the_tokens_of_a_batch_is_refused_with_two_that_do():
    with pytest.raises(UsageError, match="not whole samples") as refusal:
        RAMPS["palm_540b"].at_length(3000)
    assert refusal.value.remedies == ("--sequence-length 2048", "--sequence-length 4096")


def test_a_schedule_keeps_its_unit_at_another_length():
    palm, minimax = (RAMPS[name].at_length(1024).schedule for name in ("palm_540b", "minimax_01"))
    assert palm == "steps: 0:1024 50000:2048 115000:4096"
    assert minimax.startswith("tokens: 0:16384 69000000000:32768 ")
    assert from_step_schedule(minimax, sequence_length=1024).target == 131_072


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("palm_540", "rampcli ramps palm_540b"),
        ("bloom", "rampcli ramps bloom_176b"),
        ("nothing-like-it", "rampcli ramps"),
    ],
)
def test_a_wrong_name_is_refused_with_near_ones(name, remedy):
    with pytest.raises(UsageError, match=f"there is no ramp {name}") as refusal:
        published_ramp(name)
    assert remedy in refusal.value.remedy


def test_the_words_have_the_nodes_that_are_asked_for():
    assert "trainer.num_nodes=4" in RAMPS["palm_540b"].words(nodes=4)
    assert "trainer.num_nodes=288" in RAMPS["nemotron4_15b"].words()


def test_the_words_have_the_optimiser_of_the_run_if_it_is_built_in():
    assert "optim.optimizer=adamw" in RAMPS["bloom_176b"].words()
    assert not any(word.startswith("optim.") for word in RAMPS["palm_540b"].words())
