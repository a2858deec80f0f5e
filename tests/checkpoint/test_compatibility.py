"""Which runs in phases may resume from a checkpoint, by arithmetic alone."""

from pathlib import Path

import pytest

from drawn_phases import planned
from rampcli.checkpoint.compatibility import (
    check_ended_phases,
    check_resumable,
    phase_facts,
    settings_of_checkpoint,
)
from rampcli.config import snapshot
from rampcli.errors import ForeignCheckpointError
from rampcli.runs.manifest import Checkpoint
from run_files import manifest

RUN = (
    *("model.global_batch_size=2", "model.rampup_batch_size=null", "trainer.max_steps=null"),
    *("phases.a.until=steps:3", "phases.a.data.sequence_length=32", "phases.b.until=steps:8"),
    *("phases.c.until=steps:12", "phases.c.data.sequence_length=32"),
)
ALONE = ("model.global_batch_size=2", "model.rampup_batch_size=null", "trainer.max_steps=12")


def saved_at(steps, words=RUN):
    """Returns a checkpoint of a run after some steps."""
    run = planned(words)
    trained = run.trained_by(steps * 2)
    facts = phase_facts(trained)
    manifest = {
        "step": steps,
        "consumed_samples": steps * 2,
        "settings": snapshot.identity(trained.config),
        **({} if facts is None else {"phase": facts}),
    }
    return Checkpoint(Path("run", "checkpoints", "step"), manifest)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (8, ["phases.c.until=steps:20"]),
        (8, ["phases.c.until=steps:20", "phases.d.until=steps:30"]),
        (8, ["phases.c.data.sequence_length=128", "phases.c.model.global_batch_size=4"]),
        (6, ["phases.b.until=steps:6", "phases.c.until=steps:7"]),
        (6, ["phases.b.until=steps:7"]),
        (3, ["phases.b.data.sequence_length=64"]),
        (12, ["phases.d.until=steps:30"]),
    ],
)
def test_a_run_may_change_what_its_checkpoint_has_not_reached(steps, words):
    check_resumable(saved_at(steps), planned([*RUN, *words]), corpora={})


@pytest.mark.parametrize(
    ("steps", "words", "said"),
    [
        (8, ["phases.a.until=steps:4"], "which began after 6 samples, 3 steps and 192 tokens."),
        (
            8,
            ["phases.a.model.global_batch_size=4"],
            "Here, it begins after 12 samples, 3 steps and",
        ),
        (
            8,
            ["phases.a.data.sequence_length=64"],
            "it begins after 6 samples, 3 steps and 384 tokens",
        ),
        (8, ["phases.b.data.sequence_length=32"], "data.sequence_length=128 (here 32)"),
        (12, ["phases.b.until=steps:9"], "in phase c, which began after 16 samples"),
        (12, ["trainer.max_steps=8"], "Here, no phase begins there"),
        (12, ["phases.c.until=steps:11", "phases.d.until=steps:20"], "phases.c.until=steps:12 or"),
        (7, ["phases.b.until=steps:6"], "phases.b.until=steps:7 or a later end"),
        (12, ["phases.b.until=steps:20", "phases.c.until=steps:30"], "in phase c, which began"),
    ],
)
def test_a_run_may_not_change_where_phases_up_to_its_checkpoint_began(steps, words, said):
    with pytest.raises(ForeignCheckpointError) as raised:
        check_resumable(saved_at(steps), planned([*RUN, *words]), corpora={})
    assert said in str(raised.value)


def test_a_corpus_must_go_on_where_earlier_phases_have_left_it():
    """Phase c goes on 6 samples into the order that phase a has begun."""
    saved = saved_at(12)
    saved.manifest["phase"]["reading"] = [[16], [0, 0, 7]]
    with pytest.raises(ForeignCheckpointError, match="in phase c, whose corpora begin elsewhere"):
        check_resumable(saved, planned(RUN), corpora={})


def test_the_first_phase_resumes_a_run_without_phases_and_the_other_way_round():
    check_resumable(saved_at(3, ALONE), planned([*ALONE, "phases.a.until=steps:5"]), corpora={})
    first = [*ALONE, "phases.a.until=steps:5", "phases.b.until=null"]
    check_resumable(saved_at(3, first), planned(ALONE), corpora={})
    with pytest.raises(ForeignCheckpointError, match="by a run in phases, which is now without"):
        check_resumable(saved_at(8, first), planned(ALONE), corpora={})
    with pytest.raises(ForeignCheckpointError, match="by a run without phases, which is now in"):
        check_resumable(saved_at(8, ALONE), planned(first), corpora={})


def test_an_earlier_phase_may_be_cut_in_two():
    cut = ["phases.a.until=steps:1", "phases.a.data.sequence_length=32"]
    run = [word for word in RUN if not word.startswith("phases.")]
    run += [*cut, "phases.aa.until=steps:3", "phases.aa.data.sequence_length=32"]
    run += ["phases.b.until=steps:8", "phases.c.until=steps:12"]
    run += ["phases.c.data.sequence_length=32"]
    check_resumable(saved_at(12), planned(run), corpora={})


@pytest.mark.parametrize(("after", "length"), [(-1, 32), (0, 32), (1, 128)])
def test_a_checkpoint_has_the_settings_of_the_phase_that_took_its_last_step(after, length):
    resolved = planned(RUN)
    consumed = resolved.plan.phases[1].first.samples + after
    checkpoint = Checkpoint(Path("step_10"), manifest(consumed_samples=consumed))
    assert settings_of_checkpoint(resolved.config, checkpoint).data.sequence_length == length


def test_a_checkpoint_of_a_run_without_phases_has_the_settings_of_the_run():
    config = planned(ALONE).config
    checkpoint = Checkpoint(Path("step_10"), manifest(consumed_samples=4))
    assert settings_of_checkpoint(config, checkpoint) is config


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["optim.weight_decay=0.3"], None),
        (["phases.c.optim.weight_decay=0.3", "phases.a.data.micro_batch_size=2"], None),
        (["phases.b.optim.weight_decay=0.3"], None),
        (["phases.a.optim.weight_decay=0.1"], None),
        (["phases.a.optim.weight_decay=0.3"], "phases.a.optim.weight_decay"),
        (["phases.a.loss.z_weight=1e-4"], "phases.a.loss.z_weight"),
        (["phases.a.optim.beta1=0.8"], "phases.a.optim.beta1"),
    ],
)
def test_a_phase_that_has_ended_keeps_what_it_was_trained_with(words, key):
    run = [*RUN, "optim.weight_decay=0.1"]
    earlier, now = planned(run), planned([*run, *words])
    if key is None:
        check_ended_phases(earlier, now, consumed_samples=14)
        return
    for one, other in ((earlier, now), (now, earlier)):
        check_ended_phases(one, other, consumed_samples=4)
        with pytest.raises(ForeignCheckpointError) as raised:
            check_ended_phases(one, other, consumed_samples=6)
        assert raised.value.keys == (key,)


def test_an_ended_phase_is_compared_with_the_phases_that_trained_its_samples():
    run = [word for word in RUN if not word.startswith("phases.")]
    decayed = "phases.{}.optim.weight_decay=0.3"
    cut = planned([*run, "phases.a.until=steps:1", "phases.b.until=steps:3", decayed.format("b")])
    whole = planned([*run, "phases.b.until=steps:3", decayed.format("b")])
    for one, other in ((cut, whole), (whole, cut)):
        with pytest.raises(ForeignCheckpointError, match=r"optim\.weight_decay="):
            check_ended_phases(one, other, consumed_samples=6)
    renamed = ["phases.first.until=steps:1", "phases.last.until=steps:3", decayed.format("last")]
    check_ended_phases(cut, planned([*run, *renamed]), consumed_samples=6)
