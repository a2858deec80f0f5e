"""Phases as words, as files and as edits in Python, and what drops them."""

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.compose import apply_overrides, compose, compose_file
from rampcli.config.layers import PYTHON, Precedence, edited_stack
from rampcli.config.phases import phase_entries
from rampcli.errors import ErrorReport, UsageError
from rampcli.planning.resolve import resolve
from tests.config.overrides import refusal_of

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
    return phases_of(edited_stack(config, PYTHON, Precedence.USER, report=ErrorReport()))


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
    assert phases_of(apply_overrides(config, ["~phases.b"])) == {"a": {"until": "steps:5"}}
    both = apply_overrides(config, ["phases.a=null", "phases.b=null", "trainer.max_steps=3"])
    assert resolve(both).plan.end_step == 3


def with_file(option, text, *choices):
    """Returns the layers of choices and of a file over the whole tree."""
    folder = option("mine/own", f"# @package _global_\n{text}\n")
    return apply_overrides(compose(*choices), ["mine=own"], config_dir=folder)


def test_a_file_drops_a_phase(option):
    stack = with_file(option, "phases: {b: null}", *RECIPE)
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
def test_a_file_has_phases_as_a_list_or_as_a_mapping(text, option):
    stack = with_file(option, text, "model=llama3_tiny")
    assert phases_of(stack) == {
        "warm": {"until": "steps:5", "data.sequence_length": 64},
        "main": {"until": "10K", "optim.lr": 1e-3},
    }


@pytest.mark.parametrize(
    "phases", ["[{name: warm, until: 1K}, {name: main}]", "{warm: {until: 1K}, main: {}}"]
)
def test_a_phase_of_a_file_that_sets_nothing_is_a_phase(phases, option):
    stack = with_file(option, f"phases: {phases}", "model=llama3_tiny")
    assert phases_of(stack) == {"warm": {"until": "1K"}, "main": {"until": None}}


OWN = st.fixed_dictionaries(
    {},
    optional={
        "data.sequence_length": st.sampled_from([64, 256]),
        "data": st.fixed_dictionaries({"micro_batch_size": st.sampled_from([1, 2, 4])}),
        "optim": st.fixed_dictionaries({"lr": st.sampled_from([1e-3, 1e-4])}),
        "until": st.sampled_from(["10K", "steps:5", 2000]),
        "train.global_batch_size": st.sampled_from([16, 32]),
    },
)


def in_file(phases, folder):
    """Returns the tiny recipe with the phases of a file of settings."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"phases": phases}, sort_keys=False))
    return compose_file(path)


@run(max_examples=30)
@given(mapping=st.dictionaries(st.sampled_from(["a", "b", "c"]), OWN, min_size=1))
def test_phases_in_python_are_a_list_or_a_mapping_as_in_a_file(mapping, tmp_path_factory):
    listed = [{"name": name, **own} for name, own in mapping.items()]
    folder = tmp_path_factory.mktemp("phases")
    read = [phases_of(apply_overrides(in_file(one, folder), [])) for one in (listed, mapping)]
    assert list(read[0].items()) == list(read[1].items())
    for phases in (listed, tuple(listed), mapping):
        config = compose(*RECIPE)
        config.phases = phases
        assert list(edited(config).items()) == list(read[0].items())


def test_phases_in_python_give_the_run_of_a_file(option):
    phases = [
        {"name": "warm", "until": "10K", "data.sequence_length": 64},
        {"name": "long", "until": "30K", "data": {"sequence_length": 256}},
        {"name": "main"},
    ]
    base = (*RECIPE[:4], "trainer.max_tokens=50K")
    config = compose(*base)
    config.phases = phases
    text = yaml.safe_dump({"phases": phases}, sort_keys=False)
    stack = with_file(option, text, *base)
    in_python, from_file = resolve(config), resolve(stack)
    assert in_python.config == from_file.config
    assert in_python.plan == from_file.plan
    assert [phase.name for phase in in_python.phases] == ["warm", "long", "main"]


def test_phases_that_are_listed_anew_replace_those_of_the_recipe_and_their_order():
    config = compose(*RECIPE)
    config.phases = [{"name": "b", **config.phases["b"]}, {"name": "a", "until": "steps:12"}]
    assert list(edited(config)) == ["b", "a"]
    assert [*resolve(config).config.phases] == ["b", "a"]
    config.phases.append({"name": "c", "until": "steps:20"})
    assert list(edited(config)) == ["b", "a", "c"]
    config.phases = []
    assert edited(config) == {}


@pytest.mark.parametrize(
    "phases",
    [
        [{"until": "1K"}],
        [{"name": "a-b", "until": "1K"}],
        [{"name": 1, "until": "1K"}],
        [{"name": "a", "until": "1K"}, {"name": "a"}],
        ["a"],
        5,
        "a",
        {"a": 5},
        {"a-b": {"until": "1K"}},
        {"a": {"untill": "1K"}},
        {"a": {"data": {}}},
        [{"name": "a", "until": "1K", "model": {"hidden_sise": 4}}],
    ],
    ids=str,
)
def test_wrong_phases_are_refused_in_python_as_in_a_file(phases, tmp_path):
    config = compose(*RECIPE)
    config.phases = phases
    with pytest.raises(UsageError) as refusal:
        in_file(phases, tmp_path)
    here, there = refusal_of(config), refusal.value
    assert (here.keys, here.remedy) == (there.keys, there.remedy)
    what = [error.message.partition(": ")[2] or error.message for error in (here, there)]
    assert what[0] == what[1]


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("phases.a-b.until=1M", "phases.a_b.until=1M"),
        ("phases.1.untill=1M", "phases.phase_1.until=7.5T"),
        ("phases..until=1M", "phases.phase_.until=1M"),
        ("phases=5", "phases=null, which drops all phases"),
        ("phases.a=5", "phases.a.until=7.5T"),
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
