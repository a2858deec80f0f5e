import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import settings as run
from hypothesis import strategies as st
from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
from omegaconf.errors import OmegaConfBaseException

from rampcli import llm
from rampcli.batch.quantities import parse_count
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import build_config, stack_of
from rampcli.config.values import typed
from rampcli.errors import UsageError, UsageErrors, shown
from rampcli.files.records import MOST
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import flatten, leaves, settings
from rampcli.settings.config import Config
from remedies import offers


def built_or_refused(key, value):
    try:
        return dict(leaves(build_config({key: value}, place="here")))[key], None
    except UsageError as refusal:
        return None, refusal


def test_building_from_all_leaves_gives_an_equal_configuration():
    config = Config()
    config.model.rampup_batch_size = [8, 4, 6000]
    config.rampup.node_policy = "fixed"
    config.optim.lr = 1 / 3
    assert build_config(dict(leaves(config)), place="here") == config


def test_settings_that_are_not_given_keep_their_defaults():
    assert build_config({"seed": 7}, place="here") == dataclasses.replace(Config(), seed=7)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("trainer.max_tokens", "250B", 250_000_000_000),
        ("trainer.max_samples", "1.5M", 1_500_000),
        ("trainer.max_samples", "50_000_000", 50_000_000),
        ("model.rampup_batch_size", [256, "128", "50M"], [256, 128, 50_000_000]),
        ("model.rampup_batch_size", (256, 128, 50), [256, 128, 50]),
        ("model.rampup_batch_size", None, None),
        ("trainer.gradient_clip_val", None, None),
        ("optim.lr", 1, 1.0),
        ("optim.lr", "3e-4", 3e-4),
        ("per_device_batch_size", 4, 4.0),
        ("name", "50M", "50M"),
        ("model.step_batch_size_schedule", "0:512", "0:512"),
        ("rampup.node_policy", "fixed", "fixed"),
        ("trainer.precision", "bf16", "bf16"),
        ("schedule.batch_coupling", "sqrt", "sqrt"),
        ("schedule.batch_coupling", "0.6", 0.6),
        ("schedule.batch_coupling", 1, 1.0),
        ("model.bias", True, True),
        ("trainer.max_samples", MOST, MOST),
    ],
)
def test_a_value_is_converted_to_the_type_of_its_setting(key, value, stored):
    found = stack_of(build_config({key: value}, place="here")).entry(key).value
    assert found == stored
    assert type(found) is type(stored)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("seed", 1.5, "an integer"),
        ("seed", 2.0, "an integer"),
        ("seed", True, "an integer"),
        ("seed", None, "an integer"),
        ("seed", "1.5", "an integer"),
        ("seed", [1], "an integer"),
        ("seed", {"a": 1}, "an integer"),
        ("trainer.max_steps", "many", "an integer"),
        ("model.rampup_batch_size", 256, "a list of integers"),
        ("model.rampup_batch_size", [256, 128, "many"], "a list of integers"),
        ("model.rampup_batch_size", [256, 128, 0.5], "a list of integers"),
        ("model.rampup_batch_size", [256, None, 1], "a list of integers"),
        ("model.rampup_batch_size", [256, [128], 1], "a list of integers"),
        ("model.rampup_batch_size", [256, {"a": 1}, 1], "a list of integers"),
        ("model.rampup_batch_size", {"start": 256}, "a list of integers"),
        ("optim.lr", "fast", "a number"),
        ("optim.lr", None, "a number"),
        ("optim.lr", float("nan"), "a finite number"),
        ("optim.lr", float("-inf"), "a finite number"),
        ("trainer.peak_tflops", "inf", "a finite number"),
        ("data.split", [98, float("nan"), 1], "a finite number"),
        ("per_device_batch_size", "many", "a number"),
        ("model.bias", "maybe", "true or false"),
        ("rampup.node_policy", "nemesis", "one of nemo, best, fixed"),
        ("schedule.batch_coupling", "cubic", "one of none, sqrt, linear, or a number"),
        ("schedule.batch_coupling", True, "one of none, sqrt, linear, or a number"),
        ("schedule.batch_coupling", None, "one of none, sqrt, linear, or a number"),
        ("schedule.batch_coupling", "nan", "a finite number"),
        ("name", None, "a string"),
        ("run_dir", [1], "a string"),
        ("trainer.max_samples", MOST + 1, "beyond 1e+18"),
        ("trainer.max_samples", -MOST - 1, "beyond 1e+18"),
        ("model.rampup_batch_size", [1, 1, 10**400], "beyond 1e+18"),
        ("optim.lr", 1e300, "beyond 1e+18"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key_and_place(key, value, wanted):
    with pytest.raises(UsageError) as refusal:
        build_config({key: value}, place="here")
    assert refusal.value.message.endswith(
        f" is not {wanted}" if not wanted.startswith("beyond") else f" is {wanted}"
    )
    assert refusal.value.message.startswith(f"{key}=")
    assert refusal.value.keys == (key,)
    assert refusal.value.set_by == (f"{key}={shown(value)} (here)",)


@pytest.mark.parametrize("key", ["seed", "trainer.num_nodes", "trainer.devices"])
def test_a_setting_with_its_own_maximum_is_exempt_from_the_general_limit(key):
    assert typed(key, 10**30) == 10**30


def test_the_value_suggested_for_a_wrong_one_is_accepted():
    for key in (key for key, setting in settings().items() if setting.doc):
        _, refusal = built_or_refused(key, {"no": {"such": "value"}})
        assert refusal.message.startswith(f"{key}={{no:{{such:value}}}} is not ")
        for offer in offers(refusal):
            assert list(offer) == [key]
            assert built_or_refused(key, offer[key])[1] is None


@pytest.mark.parametrize(
    ("key", "fraction", "offered"),
    [
        ("schedule.batch_coupling", "1/2", 0.5),
        ("optim.lr", "1/1000", 0.001),
        ("optim.beta2", "3/2", 0.95),  # out of range, so the default is offered
    ],
)
def test_a_fraction_is_refused_with_the_number_that_it_is_if_the_range_has_it(
    key, fraction, offered
):
    _, refusal = built_or_refused(key, fraction)
    assert offers(refusal) == [{key: offered}]


@pytest.mark.parametrize("written", ["stop", "restart"])
def test_the_earlier_name_of_a_choice_is_understood_everywhere(written, recipe, tmp_path):
    recipe.rampup.at_boundary = written
    assert resolve(recipe).config.rampup.at_boundary == "restart"
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(
        f"# @package _global_\nrampup:\n  at_boundary: {written}\n"
    )
    words = [f"rampup.at_boundary={written}"], ["hardware=mine"]
    for each in words:
        config = resolve(apply_overrides(llm.gpt3_5b.pretrain_recipe(), each, config_dir=tmp_path))
        assert config.config.rampup.at_boundary == "restart"
        assert config.plan.phases[0].restarts_always


def test_all_errors_are_reported_at_once():
    with pytest.raises(UsageErrors) as refusal:
        build_config({"seed": "many", "optim.lr": "fast", "model.bais": True}, place="here")
    assert [error.set_by for error in refusal.value.errors] == [
        ("seed=many (here)",),
        ("optim.lr=fast (here)",),
        ("model.bais=true (here)",),
    ]
    assert str(refusal.value).count("error: ") == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "${seed}"),
        ("run_dir", "${oc.env:HOME}"),
        ("model.rampup_batch_size", ["${seed}", 1, 2]),
        ("seed", "???"),
        ("name", "???"),
        ("model.rampup_batch_size", ["???", 1, 2]),
    ],
)
def test_a_reference_is_refused_and_not_resolved(key, value):
    with pytest.raises(UsageError) as refusal:
        build_config({key: value}, place="here")
    assert refusal.value.keys == (key,)


@run(max_examples=25)
@given(
    key=st.sampled_from(sorted(settings())),
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
)
@example(key="name", value="???")
@example(key="trainer.max_steps", value=2**100)
def test_any_value_is_accepted_or_refused_with_its_key(key, value):
    found, refusal = built_or_refused(key, value)
    if refusal is not None:
        assert refusal.keys == (key,)
    elif isinstance(found, float):
        assert math.isfinite(found)
        assert found == float(value)
    else:
        assert found is None or isinstance(found, bool | int | str | list | dict)


NODES = {
    "name": StringNode,
    "seed": IntegerNode,
    "optim.lr": FloatNode,
    "model.bias": BooleanNode,
}
"""Nodes of OmegaConf, by a setting of their type."""
SWITCHES = ("true", "Yes", "ON", "y", "false", "No", "oFF", "n", "0", "2", " 1 ", "tru", "")


@run(max_examples=200)
@given(
    key=st.sampled_from(sorted(NODES)),
    value=st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(-1e18, 1e18)
    | st.sampled_from(SWITCHES)
    | st.from_regex(r"[-+]?[0-9_]{0,4}\.?[0-9]{0,3}(e[-+]?[0-9])?", fullmatch=True)
    | st.text("ab1.", max_size=4)
    | st.binary(max_size=2)
    | st.tuples(st.integers())
    | st.just(Path("a")),
)
def test_a_value_is_converted_by_the_rules_of_omegaconf(key, value):
    # Units and whole decimals, as in 50M and 5.0, are an addition.
    assume(not (key == "seed" and isinstance(value, str) and parse_count(value) is not None))
    found, refusal = built_or_refused(key, value)
    try:
        wanted = NODES[key](value=value, is_optional=False)._value()
    except OmegaConfBaseException:
        assert refusal is not None
    else:
        assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize("section", ["model", "trainer", "optim"])
def test_a_section_is_refused_as_a_setting(section):
    with pytest.raises(UsageError) as refusal:
        build_config({section: 1}, place="here")
    assert (refusal.value.keys, refusal.value.set_by) == ((section,), (f"{section}=1 (here)",))


@pytest.mark.parametrize(
    "key",
    [
        "_target_",
        "model._target_",
        "seed.seed",
        "",
        ".",
        "model.",
        ".seed",
        "stack",
        "model.__class__",
    ],
)
def test_a_key_outside_the_schema_is_refused(key):
    with pytest.raises(UsageError) as refusal:
        build_config({key: "os.system"}, place="here")
    assert refusal.value.keys[0] == key


def test_an_empty_mapping_is_refused_as_a_setting():
    with pytest.raises(UsageError) as refusal:
        build_config(flatten({"model": {"nothing": {}}}), place="here")
    assert refusal.value.keys == ("model.nothing",)


def test_a_mapping_keeps_its_names_in_their_order_and_its_values_as_text():
    key = "data.validation"
    assert typed(key, {"wiki": "a", 2024: 7}) == {"wiki": "a", "2024": "7"}
    assert list(typed(key, {"b": "x", "a": "y"})) == ["b", "a"]
    assert typed(key, None) is None


@pytest.mark.parametrize("value", [{}, "a", ["a"], {"a": None}, {"a": ["b"]}, {"a": {"b": "c"}}])
def test_what_is_not_a_mapping_of_names_to_texts_is_refused(value):
    with pytest.raises(UsageError):
        typed("data.validation", value)


def test_a_reference_inside_a_mapping_is_refused():
    for value in ({"a": "${oc.env:HOME}"}, {"${x}": "a"}):
        with pytest.raises(UsageError):
            typed("data.validation", value)
