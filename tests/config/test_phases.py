"""Phases as words, as files and as edits in Python, and what drops them."""

import pytest

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import PYTHON, Precedence, edited_stack
from rampcli.config.phases import phase_entries
from rampcli.errors import Report, UsageError
from rampcli.planning.resolve import resolve

RECIPE = (
    *("data=mock", "model=llama3_tiny", "optim=llama3_tiny", "batch=llama3_tiny"),
    *("phases.a.until=steps:5", "phases.b.until=steps:9", "phases.b.data.sequence_length=64"),
)


def phases_of(stack):
    return {
        name: {key: entry.value for key, entry in own.items()}
        for name, own in phase_entries(stack).items()
    }


def edited(config):
    return phases_of(edited_stack(config, PYTHON, Precedence.USER, report=Report()))


def test_null_drops_the_phases_below_it_and_those_beside_it_stay():
    config = compose(*RECIPE)
    assert list(phases_of(apply_overrides(config, []))) == ["a", "b"]
    alone = apply_overrides(config, ["phases=null", "trainer.max_steps=3"])
    assert phases_of(alone) == {}
    assert resolve(alone).config.phases == {}
    assert resolve(alone).plan.end_step == 3
    other = apply_overrides(config, ["phases.b.until=steps:4", "phases=null"])
    assert phases_of(other) == {"b": {"until": "steps:4"}}


def test_null_drops_one_phase_below_it_and_what_is_beside_it_stays():
    config = compose(*RECIPE)
    assert phases_of(apply_overrides(config, ["phases.b=null"])) == {"a": {"until": "steps:5"}}
    other = apply_overrides(config, ["phases.b.until=steps:4", "phases.b=null", "phases.a=null"])
    assert phases_of(other) == {"b": {"until": "steps:4"}}
    both = apply_overrides(config, ["phases.a=null", "phases.b=null", "trainer.max_steps=3"])
    assert resolve(both).plan.end_step == 3


def test_a_file_drops_a_phase(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.yaml").write_text("# @package _global_\nphases: {b: null}\n")
    stack = apply_overrides(compose(*RECIPE), ["mine=one"], config_dir=tmp_path)
    assert phases_of(stack) == {"a": {"until": "steps:5"}}


def test_phases_are_edited_added_and_deleted_in_python():
    config = compose(*RECIPE)
    config.phases["b"]["optim.lr"] = 1e-4
    config.phases["c"] = {"until": "steps:12"}
    assert edited(config) == {
        "a": {"until": "steps:5"},
        "b": {"until": "steps:9", "data.sequence_length": 64, "optim.lr": 1e-4},
        "c": {"until": "steps:12"},
    }
    del config.phases["a"], config.phases["b"]["data.sequence_length"]
    assert edited(config) == {
        "b": {"until": "steps:9", "optim.lr": 1e-4},
        "c": {"until": "steps:12"},
    }
    config.phases.clear()
    assert edited(config) == {}


@pytest.mark.parametrize(
    "text",
    [
        "phases:\n- name: warm\n  until: steps:5\n  data: {sequence_length: 64}\n"
        "- {name: main, until: 10K, optim.lr: 1e-3}\n",
        "phases:\n  warm:\n    until: steps:5\n    data.sequence_length: 64\n"
        "  main: {until: 10K, optim: {lr: 1e-3}}\n",
    ],
)
def test_a_file_has_phases_as_a_list_or_as_a_mapping(text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "two.yaml").write_text(f"# @package _global_\n{text}")
    stack = apply_overrides(compose("model=llama3_tiny"), ["mine=two"], config_dir=tmp_path)
    assert phases_of(stack) == {
        "warm": {"until": "steps:5", "data.sequence_length": 64},
        "main": {"until": "10K", "optim.lr": 1e-3},
    }


@pytest.mark.parametrize(
    "phases", ["[{name: warm, until: 1K}, {name: main}]", "{warm: {until: 1K}, main: {}}"]
)
def test_a_phase_of_a_file_that_sets_nothing_is_a_phase(phases, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "two.yaml").write_text(f"# @package _global_\nphases: {phases}\n")
    stack = apply_overrides(compose("model=llama3_tiny"), ["mine=two"], config_dir=tmp_path)
    assert phases_of(stack) == {"warm": {"until": "1K"}, "main": {"until": None}}


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("phases.a-b.until=1M", "phases.a_b.until=1M"),
        ("phases.1.untill=1M", "phases.phase_1.until=7.5T"),
        ("phases..until=1M", "phases.phase_.until=1M"),
        ("phases=5", "phases=null, which drops all phases"),
        ("phases.a=5", "phases.a.until=7.5T"),
        ("~phases.a", "phases.a=null"),
        ("phases.bb=null", "phases.b=null"),
        ("phases.long=null", "the same words without it"),
        ("phases.a.max_steps=5", "phases.a.until=7.5T"),
        ("phases.a.untill=5M", "phases.a.until=5M"),
        ("phases.a.end=5M", "phases.a.until=5M"),
        ("phases.a.phases.b.until=5M", "phases.b.until=5M"),
    ],
)
def test_a_key_that_is_none_of_a_phase_is_answered_with_one_that_is(word, remedy):
    with pytest.raises(UsageError) as raised:
        apply_overrides(compose(*RECIPE), [word])
    assert remedy in list(map(str, raised.value.remedies))
