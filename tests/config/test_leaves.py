import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.config.leaves import build, flatten, known_keys, leaves, nearest_keys, nest
from rampcli.config.schema import Config, NodePolicy, Precision
from rampcli.errors import UsageError

NAMES = st.text("abcdefgh_", min_size=1, max_size=4)
TREES = st.dictionaries(
    NAMES, st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8)
)


def built_or_refused(key, value):
    try:
        return dict(leaves(build({key: value}, place=str)))[key], None
    except UsageError as refusal:
        return None, refusal


def test_known_keys_are_the_leaves_of_a_configuration_in_order():
    assert list(known_keys()) == [key for key, _ in leaves(Config())]


def test_every_leaf_is_found_under_its_dotted_key():
    config = Config()
    config.trainer.strategy.context_parallel_size = 7
    assert dict(leaves(config))["trainer.strategy.context_parallel_size"] == 7


@settings(max_examples=30)
@given(tree=TREES)
def test_nesting_undoes_flattening(tree):
    flat = flatten(tree)
    assert nest(flat) == tree
    assert not any(isinstance(value, dict) for value in flat.values())


def test_an_empty_section_stays_a_leaf_so_that_a_wrong_one_is_seen():
    assert flatten({"model": {"nothing": {}}}) == {"model.nothing": {}}
    with pytest.raises(UsageError, match=r"there is no setting model\.nothing"):
        build(flatten({"model": {"nothing": {}}}), place=str)


def test_building_from_all_leaves_gives_the_same_configuration():
    config = Config()
    config.model.rampup_batch_size = [8, 4, 6000]
    config.rampup.node_policy = NodePolicy.fixed
    config.optim.lr = 1 / 3
    assert build(dict(leaves(config)), place=str) == config


def test_settings_that_are_not_given_keep_their_defaults():
    assert build({"seed": 7}, place=str) == dataclasses.replace(Config(), seed=7)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("trainer.max_tokens", "250B", 250_000_000_000),
        ("trainer.max_samples", "1.5M", 1_500_000),
        ("trainer.max_samples", "50_000_000", 50_000_000),
        ("model.rampup_batch_size", [256, "128", "50M"], [256, 128, 50_000_000]),
        ("model.rampup_batch_size", None, None),
        ("trainer.gradient_clip_val", None, None),
        ("optim.lr", 1, 1.0),
        ("optim.lr", "3e-4", 3e-4),
        ("name", "50M", "50M"),
        ("rampup.node_policy", "fixed", NodePolicy.fixed),
        ("trainer.precision", Precision.bf16, Precision.bf16),
        ("model.bias", True, True),
    ],
)
def test_a_value_takes_the_type_of_its_setting(key, value, stored):
    found = dict(leaves(build({key: value}, place=str)))[key]
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
        ("model.bias", "maybe", "true or false"),
        ("rampup.node_policy", "nemesis", "one of nemo, fixed"),
        ("name", None, "a text"),
        ("run_dir", [1], "a text"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key_and_place(key, value, wanted):
    with pytest.raises(UsageError) as refusal:
        build({key: value}, place=lambda key: f"where {key} stands")
    assert refusal.value.message.endswith(f" is not {wanted}")
    assert refusal.value.message.startswith(f"{key}=")
    assert refusal.value.keys == (key,)
    assert refusal.value.set_by == (f"where {key} stands",)


@pytest.mark.parametrize(
    ("key", "value"), [("name", "???"), ("seed", "???"), ("trainer.max_steps", "???"), ("model.rampup_batch_size", ["???", 1, 2])]
)
def test_question_marks_are_a_value_like_any_other_and_no_hole_in_the_configuration(key, value):
    found, refusal = built_or_refused(key, value)
    assert found == value if refusal is None else refusal.keys == (key,)


@pytest.mark.parametrize(
    ("key", "value"), [("name", "${seed}"), ("run_dir", "${oc.env:HOME}"), ("model.rampup_batch_size", ["${seed}", 1, 2])]
)
def test_a_reference_is_refused_and_not_resolved(key, value):
    with pytest.raises(UsageError, match="are not resolved here") as refusal:
        build({key: value}, place=str)
    assert refusal.value.keys == (key,)


@settings(max_examples=25)
@given(key=st.sampled_from(sorted(known_keys())), value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6))
@example(key="name", value="???")
@example(key="seed", value=2**100)
def test_any_value_is_taken_or_refused_by_its_key(key, value):
    found, refusal = built_or_refused(key, value)
    if refusal is None:
        assert found is None or isinstance(found, bool | int | float | str | list)
    else:
        assert refusal.keys == (key,)


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("model.global_batchsize", "model.global_batch_size"),
        ("data.rampup_batch_size", "model.rampup_batch_size"),
        ("trainer.lr", "optim.lr"),
        ("seeed", "seed"),
        ("checkpoint.keep_lasts", "checkpoint.keep_last"),
    ],
)
def test_a_mistyped_key_is_refused_with_the_key_that_was_meant(mistyped, meant):
    with pytest.raises(UsageError) as refusal:
        build({mistyped: 1}, place=str)
    assert refusal.value.message == f"there is no setting {mistyped}"
    assert meant in refusal.value.remedy.split(" or ")


def test_a_key_like_no_other_points_to_the_list_of_all():
    assert nearest_keys("zzzzzzzz") == []
    with pytest.raises(UsageError, match="zzzzzzzz") as refusal:
        build({"zzzzzzzz": 1}, place=str)
    assert "--cfg" in refusal.value.remedy


@given(key=st.text("abcdefglmnorstz._", max_size=24))
def test_at_most_three_keys_are_suggested_and_all_of_them_exist(key):
    suggested = nearest_keys(key)
    assert len(suggested) == len(set(suggested)) <= 3
    assert set(suggested) <= set(known_keys())


@pytest.mark.parametrize("section", ["model", "trainer.strategy"])
def test_a_section_is_no_setting(section):
    with pytest.raises(UsageError, match=f"{section} is a section, not a setting"):
        build({section: 1}, place=str)


@pytest.mark.parametrize("key", ["_target_", "model._target_", "seed.seed", "", ".", "model.", ".seed", "origin", "model.__class__"])
def test_a_key_outside_the_schema_is_refused(key):
    with pytest.raises(UsageError) as refusal:
        build({key: "os.system"}, place=str)
    assert refusal.value.keys == (key,)
