"""Laws of runs in phases, in arithmetic alone."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from drawn_phases import ONE_RANK
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.config.file_facts import without_files
from rampcli.config.phases import (
    phase_entries,
    phase_stack,
    run_stack,
    sets_batch,
    sets_rate,
    settings_of_phases,
    without_farther_ends,
)
from rampcli.data.order import Blend
from rampcli.errors import ErrorReport, UsageError
from rampcli.llm import llama3_tiny
from rampcli.planning.out_of_memory import out_of_memory
from rampcli.planning.resolve import complete, resolve
from rampcli.planning.run_plan import run_plan
from rampcli.settings.by_key import leaves

PHASES = (
    *("phases.warm.until=200_000", "phases.warm.data.sequence_length=64"),
    *("phases.warm.model.global_batch_size=16", "phases.main.until=steps:300"),
    "phases.main.model.step_batch_size_schedule='0:8 50K:16'",
    *("phases.decay.until=700K", "phases.decay.schedule.decay_style=linear"),
    *(
        "phases.long.until=900K",
        "phases.long.data.sequence_length=256",
        "phases.long.optim.lr=1e-4",
    ),
)


def planned(*words):
    return resolve(apply_overrides(llama3_tiny.pretrain_recipe(), words))


@pytest.fixture(scope="module")
def run():
    return planned(*PHASES)


def rates(resolved):
    """The learning rate of the first and the last step of each stage."""
    return [
        resolved.of(stage).rate.at(end, global_batch_size=stage.global_batch_size)
        for stage in resolved.plan.stages
        for end in (stage.first_sample + stage.global_batch_size, stage.end_sample)
    ]


def test_a_phase_begins_where_the_one_before_it_ends(run):
    phases = run.plan.phases
    assert [phase.name for phase in phases] == ["warm", "main", "decay", "long"]
    assert all(one.end == other.first for one, other in pairwise(phases))
    assert run.plan.end_sample == phases[-1].end.samples
    assert run.plan.end_step == phases[-1].end.steps
    assert run.plan.end_tokens == phases[-1].end.tokens
    assert [stage.stage for stage in run.plan.stages] == list(range(len(run.plan.stages)))


def test_a_phase_ends_with_the_step_that_reaches_its_end(run):
    warm, main, decay, long = run.plan.phases
    for phase, until in ((warm, 200_000), (decay, 700_000), (long, 900_000)):
        last = phase.stages[-1].global_batch_size * phase.sequence_length
        assert phase.end.tokens - last < until <= phase.end.tokens
    assert main.end.steps == 300


def test_workers_plan_from_the_snapshot_what_the_command_planned(run, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(snapshot.to_yaml(run.config))
    again = run_plan(snapshot.read(path))
    assert again.plan == run.plan
    assert [one.reading for one in again.phases] == [one.reading for one in run.phases]
    assert rates(again) == rates(run)
    assert snapshot.to_yaml(again.config) == path.read_text()


def test_phases_that_change_nothing_plan_and_read_what_a_run_without_phases_does():
    words = ("trainer.max_steps=40",)
    alone = planned(*words)
    parts = planned(
        *words, "phases.a.until=steps:10", "phases.b.until=steps:17", "phases.c.until=null"
    )
    assert parts.plan.end_sample == alone.plan.end_sample
    assert parts.plan.end_step == alone.plan.end_step
    for sample in range(alone.plan.end_sample):
        one, other = parts.plan.stage_at(sample), alone.plan.stage_at(sample)
        assert one.global_batch_size == other.global_batch_size
    assert {one.reading for one in parts.phases} == {replace(parts.phases[0].reading)}
    for stage in parts.plan.stages:
        end, size = stage.end_sample, stage.global_batch_size
        rate = parts.of(stage).rate.at(end, global_batch_size=size)
        assert rate == pytest.approx(alone.phases[0].rate.at(end, global_batch_size=size))


class Windows:
    """A corpus whose windows are only counted."""

    name, fingerprint = "windows", ""

    def __init__(self, windows):
        self.windows = windows


def test_a_blend_whose_shares_change_reads_no_sample_again_before_an_epoch_ends():
    words = ("data.source=text", "trainer.max_samples=900", "model.rampup_batch_size=null")
    web, code = "0.7,web,0.3,code", "0.2,code,0.8,web"
    stack = apply_overrides(
        llama3_tiny.pretrain_recipe(),
        [
            *words,
            "phases.a.until=samples:300",
            f"phases.a.data.blend=[{web}]",
            "phases.b.until=samples:600",
            f"phases.b.data.blend=[{code}]",
            "phases.c.until=samples:900",
            f"phases.c.data.blend=[{web}]",
        ],
    )
    from rampcli.config.file_facts import FileFacts

    resolved = resolve(stack, read_files=lambda _: FileFacts(tokens=256, val_samples=4))
    seen = {"web": [], "code": []}
    sizes = {"web": 2000, "code": 2000}
    for phase, names, shares in zip(
        resolved.phases,
        (["web", "code"], ["code", "web"], ["web", "code"]),
        ([7, 3], [1, 4], [7, 3]),
        strict=True,
    ):
        blend = Blend([Windows(sizes[name]) for name in names], shares, seed=1)
        extent = phase.plan
        samples = np.arange(extent.first.samples, extent.end.samples)
        which, windows = blend.starting_at(phase.reading).locate(samples)
        for number, name in enumerate(names):
            seen[name] += windows[which == number].tolist()
    assert all(len(set(windows)) == len(windows) > 0 for windows in seen.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("phases.a.seed=3", "phases.a.until=1M"), "the order of the samples depends on it"),
        (("phases.a.until=1M", "phases.b.until=500K"), "is not after the beginning of the phase"),
        (("phases.a.optim.lr=1", "phases.b.until=500K"), "phases.a.until is not set"),
        (("phases.a.until=soon",), "is not a position"),
    ],
)
def test_phases_that_cannot_be_are_refused(words, said):
    with pytest.raises(UsageError, match=said):
        planned(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("phases.b.rampup.nodes=[1,3,2]",), "batch 8 (stage 1 of phase b) is not a multiple of 3"),
        (("phases.b.rampup.nodes=[3,2,5]",), "; stage 2 of phase b does not fit its nodes either"),
        (("phases.b.rampup.nodes=[1,2,8]",), "has 8 nodes for stage 2 of phase b, above"),
        (("phases.b.rampup.nodes=[1,0,2]",), "has 0 nodes for stage 1 of phase b, which needs"),
        (("phases.b.data.micro_batch_size=3",), "4 (stage 0) and 8 (stage 1) of phase b are not"),
        (("phases.b.parallel.data_parallel_shard_size=6",), "stage 0 of phase b: 4 data-parallel"),
    ],
)
def test_errors_number_the_stages_of_a_phase_in_their_phase(words, said):
    ramp = ("phases.b.model.rampup_batch_size=[4,4,600]", "phases.b.model.global_batch_size=12")
    fleet = ("trainer.num_nodes=6", "trainer.devices=1", "data.micro_batch_size=1")
    with pytest.raises(UsageError) as raised:
        planned(*fleet, "phases.a.until=10K", "phases.b.until=1M", *ramp, *words)
    assert said in str(raised.value)


MAXTEXT_RAMP = (
    *("per_device_batch_size=8", "enable_rampup_batch_size=true", "global_rampup_samples=500"),
    *("per_device_batch_size_start=2", "per_device_batch_size_increment=2"),
)


@pytest.mark.parametrize(
    ("word", "batch"),
    [
        ("model.global_batch_size=64", 64),
        ("model.rampup_batch_size=null", 32),
        ("per_device_batch_size=4", 16),
        ("enable_rampup_batch_size=false", 32),
    ],
)
def test_a_phase_that_sets_its_batch_has_no_ramp_of_the_run_in_maxtext_s_words(word, batch):
    fleet = ("trainer.num_nodes=2", "trainer.devices=2", "phases.a.until=10K", "phases.b.until=1M")
    run = planned(*fleet, *MAXTEXT_RAMP, f"phases.b.{word}")
    assert [one.global_batch_size for one in run.phases[1].plan.stages] == [batch]


@pytest.mark.parametrize(
    "words", [MAXTEXT_RAMP, MAXTEXT_RAMP[:1], ("gradient_accumulation_steps=2",)]
)
def test_a_word_that_gives_a_phase_another_batch_is_refused_with_the_batch_that_it_means(words):
    run = ("trainer.num_nodes=2", "trainer.devices=2", *words)
    run += () if words == MAXTEXT_RAMP else ("model.rampup_batch_size=null",)
    run += ("phases.a.until=10K", "phases.b.until=1M", "phases.b.trainer.num_nodes=1")
    run += ("data.micro_batch_size=8",) if len(words) == 1 else ()
    with pytest.raises(UsageError, match="phase b sets no batch, but") as raised:
        planned(*run)
    assert raised.value.set_by[-1] == "phases.b.trainer.num_nodes=1 (command line)"
    (remedy,) = raised.value.remedies
    again = planned(*run, str(remedy).split()[0])
    assert len(again.phases[1].plan.stages) == 1


FOUR_RANKS = (
    *("trainer.devices=4", "trainer.num_nodes=1", "data.micro_batch_size=1"),
    *("model.rampup_batch_size=null", "phases.a.until=steps:3", "phases.b.until=steps:6"),
    "phases.a.model.global_batch_size=2",
)


def resumed(consumed_samples, *words):
    stack = apply_overrides(llama3_tiny.pretrain_recipe(), [*FOUR_RANKS, *words])
    return resolve(stack, consumed_samples_in=lambda _: consumed_samples)


def test_a_finished_phase_need_not_fit_the_processes_that_resume():
    run = resumed(6, "phases.b.model.global_batch_size=4")
    assert [stage.global_batch_size for stage in run.plan.passed] == [2]
    assert [stage.global_batch_size for stage in run.plan.stages] == [4]
    assert [phase.end.samples for phase in run.plan.phases] == [6, 18]


@pytest.mark.parametrize("end", ["trainer.max_steps=null", "trainer.max_steps=5"])
def test_the_last_phase_fits_even_if_it_is_finished(end):
    with pytest.raises(UsageError, match="=6 does not divide"):
        resumed(24, "phases.b.model.global_batch_size=6", end)


def test_a_phase_validates_before_its_first_step_if_it_validates_on_other_samples(run):
    warm, main, decay, long = run.phases
    starts = [one.first_validated_sample for one in (warm, main, decay, long)]
    assert starts == [0, main.plan.first.samples, None, long.plan.first.samples]


def test_a_phase_that_runs_out_of_memory_names_settings_of_its_own(run):
    consumed = run.phases[1].plan.first.samples
    error = out_of_memory(run, consumed_samples=consumed, reason="rank 0 ran out of memory")
    assert "phases.main.trainer.activation_checkpointing=full" in str(error)
    shown = [word for remedy in error.remedies for word in str(remedy).split() if "=" in word]
    again = planned(*PHASES, *shown)
    assert [one.global_batch_size for one in again.plan.stages] == [
        one.global_batch_size for one in run.plan.stages
    ]


RUNS = (
    (),
    ("model.step_batch_size_schedule=steps: 0:4 3:8 8:16",),
    ("model.global_batch_size=8", "model.rampup_batch_size=[2,2,30]"),
    ("per_device_batch_size=8",),
    ("optim.warmup_steps=3",),
    ("schedule.batch_coupling=sqrt",),
)
SETTINGS = (
    *("model.global_batch_size=4", "model.rampup_batch_size=[4,4,40]", "optim.lr=1e-3"),
    *("model.rampup_batch_size=null", "model.step_batch_size_schedule=0:4"),
    *("optim.warmup_samples=8", "schedule.lr_factors=[1]", "per_device_batch_size=4"),
)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("run_words", RUNS, ids=lambda words: " ".join(words) or "recipe")
def test_what_one_phase_sets_leaves_the_other_as_in_the_run(run_words, name):
    """The snapshot says of each phase what its own layers say, and who has its own ramp or rate."""
    for setting in SETTINGS:
        words = (*ONE_RANK, *run_words, "phases.a.until=steps:5", "phases.b.until=steps:12")
        words = {word.partition("=")[0]: word for word in (*words, f"phases.{name}.{setting}")}
        stack = apply_overrides(llama3_tiny.pretrain_recipe(), [*words.values()])
        try:
            resolved = resolve(stack)
        except UsageError:  # these two contradict each other
            continue
        user, run = phase_entries(stack), without_farther_ends(run_stack(stack), stack)
        for phase in settings_of_phases(resolved.config):
            layers = phase_stack(run, phase.name, user[phase.name], report=ErrorReport())
            want = dict(leaves(complete(layers, without_files, ErrorReport()).config))
            have = dict(leaves(phase.config))
            chosen = ("trainer.compile", "trainer.accumulate_reduce")
            assert {k: v for k, v in have.items() if v != want[k] and k not in chosen} == {}
            assert sets_batch(phase.own) == sets_batch(user[phase.name])
            assert sets_rate(phase.own) == sets_rate(user[phase.name])


def test_an_error_of_some_phases_is_one_of_each_with_a_remedy_of_its_own():
    phases = [f"phases.{name}.until=steps:{10 * at}" for at, name in enumerate("abc", start=1)]
    words = [f"phases.{name}.data.micro_batch_size=3" for name in "ab"]
    with pytest.raises(UsageError) as raised:
        planned(*ONE_RANK, *phases, *words)
    for name, error in zip("ab", raised.value.errors, strict=True):
        assert f"of phase {name}" in error.message
        assert [*map(str, error.remedies)] == [f"phases.{name}.data.micro_batch_size=2"]
