"""Other systems' words that mean exactly one of our keys, as sources are read."""

import pytest
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import Layer, Precedence, Stack, build_config
from rampcli.config.translate import translate
from rampcli.config.values import put
from rampcli.errors import ErrorReport, UsageError, UsageErrors
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import foreign_words, leaves, settings
from rampcli.words import COMBINED, FOREIGN, SPELLINGS
from tests.config.overrides import RAMP, resolved_with, words

TENSOR = "parallel.tensor_parallel_size"
TENSOR_SPELLINGS = (
    "model.tensor_model_parallel_size",
    "trainer.strategy.tensor_model_parallel_size",
)
NAMES = (TENSOR, *TENSOR_SPELLINGS)
SIZES = [word for word in SPELLINGS if settings()[SPELLINGS[word]].type is int]


def refusal_of(read, *arguments):
    with pytest.raises(UsageError) as refusal:
        read(*arguments)
    return refusal.value


def test_a_spelling_is_never_itself_a_canonical_key():
    assert set(SPELLINGS.values()) <= set(settings())
    assert not set(SPELLINGS) & set(settings())


def test_words_whose_meaning_depends_on_other_settings_are_not_spellings():
    assert not set(SPELLINGS) & set(COMBINED)
    assert set(foreign_words()) == FOREIGN


@pytest.mark.parametrize("word", SPELLINGS)
def test_a_spelling_accepts_what_its_key_accepts_and_null(word):
    ours, theirs = settings()[SPELLINGS[word]], foreign_words()[word]
    assert (theirs.key, theirs.type, theirs.optional) == (word, ours.type, True)
    assert theirs.doc


def test_a_configuration_has_no_field_for_a_word_of_another_system(composed):
    typed = ("expansion_factor_real_data=2", "model.tensor_model_parallel_size=1")
    config = resolved_with(composed, *words(RAMP), *typed).config
    assert not FOREIGN & {key for key, _ in leaves(config)}


def test_reading_words_does_not_change_the_layers_before(composed):
    stack = apply_overrides(composed, words(RAMP))
    before = stack.values()
    translate(stack)
    assert stack.values() == before


def test_a_key_has_the_place_and_precedence_of_the_spelling_that_set_it(composed):
    stack = apply_overrides(composed, ["data.global_batch_size=4096"])
    assert stack.config().model.global_batch_size == 4096
    entry = stack.entry("model.global_batch_size")
    assert (entry.value, entry.by) == (4096, "data.global_batch_size")
    assert entry.place == "data.global_batch_size=4096 (command line)"
    assert stack.precedence("model.global_batch_size") is Precedence.USER


def test_a_key_on_the_command_line_wins_over_a_spelling_of_the_recipe():
    recipe = compose("batch=nemo_gpt3", "data.global_batch_size=4096")
    assert resolve(recipe).config.model.global_batch_size == 4096
    typed = resolved_with(recipe, "model.global_batch_size=1024").config
    assert typed.model.global_batch_size == 1024


def test_a_null_in_a_spelling_is_null_in_the_key_if_that_may_be_null(composed):
    stack = apply_overrides(composed, ["data.rampup_batch_size=null"])
    assert stack.config().model.rampup_batch_size is None
    stack = apply_overrides(composed, ["optimizer.lr=null"])
    assert stack.config().optim.lr == composed.optim.lr


def test_a_null_does_not_contradict_another_spelling(composed):
    typed = ["data.global_batch_size=null", "model.global_batch_size=64"]
    for order in (typed, typed[::-1]):
        assert apply_overrides(composed, order).config().model.global_batch_size == 64


def test_a_null_in_a_key_contradicts_a_spelling(composed):
    typed = ["model.rampup_batch_size=null", "train.rampup_batch_size=[8,8,100]"]
    for order in (typed, typed[::-1]):
        refusal = refusal_of(apply_overrides, composed, order)
        assert set(refusal.keys) == {word.partition("=")[0] for word in typed}


@run(max_examples=50)
@given(
    drawn=st.dictionaries(
        st.sampled_from([*{*Precedence} - {Precedence.EDITED, Precedence.PHASE}]),
        st.tuples(st.sampled_from(NAMES), st.integers(1, 3)),
    ),
    edited=st.none() | st.integers(1, 3),
)
def test_the_value_set_nearest_to_the_user_wins(drawn, edited):
    given = [(precedence, *drawn[precedence]) for precedence in sorted(drawn)]
    if edited is not None:  # what a recipe sets in Python lies above the files that a user chooses
        given.insert(len(given) - (Precedence.USER in drawn), (Precedence.EDITED, TENSOR, edited))
    stack = Stack(
        tuple(
            Layer.of(name, precedence, {name: value}, report=ErrorReport())
            for precedence, name, value in given
        )
    )
    newest = {name: (precedence, value) for precedence, name, value in given}
    nearest = max((precedence for precedence, _ in newest.values()), default=None)
    values = {value for precedence, value in newest.values() if precedence is nearest}
    assert stack.entry(TENSOR).value in (values or {settings()[TENSOR].default})
    assert stack.history(TENSOR)[-1] == stack.entry(TENSOR)


@run(max_examples=50)
@given(values=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1))
def test_spellings_of_one_source_must_agree(values):
    if len({*values.values()}) == 1:
        config = build_config(values, place="here")
        assert config.parallel.tensor_parallel_size in values.values()
        return
    report = ErrorReport()
    layer = Layer.of("here", Precedence.USER, values, report=report)
    first = next(iter(values))
    for error in report.errors:
        assert error.keys[0] == first
        assert f"{first}={values[first]} and " in error.message
        assert error.set_by == tuple(f"{key}={values[key]} (here)" for key in error.keys)
        assert error.remedy == "one of them"
    assert layer.entries[TENSOR].value == values[first]


def test_every_setting_whose_spellings_differ_is_named_at_once(composed):
    typed = [
        "data.global_batch_size=64",
        "model.global_batch_size=32",
        f"{TENSOR_SPELLINGS[0]}=2",
        f"{TENSOR_SPELLINGS[1]}=4",
    ]
    refusal = refusal_of(apply_overrides, composed, typed)
    assert isinstance(refusal, UsageErrors)
    assert [error.keys for error in refusal.errors] == [
        ("data.global_batch_size", "model.global_batch_size"),
        TENSOR_SPELLINGS,
    ]


def test_a_value_set_in_python_replaces_the_spelling_that_the_recipe_was_composed_with():
    recipe = compose("data.global_batch_size=512", "data.micro_batch_size=4")
    recipe.model.global_batch_size = 1024
    assert apply_overrides(recipe, []).entry("model.global_batch_size").value == 1024
    assert resolve(recipe).config.model.global_batch_size == 1024


def test_choices_of_a_recipe_in_different_spellings_must_agree():
    compose("data.global_batch_size=32", "model.global_batch_size=32")
    refusal = refusal_of(compose, "data.global_batch_size=64", "model.global_batch_size=32")
    assert refusal.keys == ("data.global_batch_size", "model.global_batch_size")


def test_files_that_are_equally_near_must_agree_and_a_nearer_one_wins(composed, option):
    option("data/mine", "source: mock\nglobal_batch_size: 8\n")
    mine = option("batch/mine", "# @package _global_\nmodel:\n  global_batch_size: 16\n")
    nearer = apply_overrides(composed, ["data=mine"], config_dir=mine)
    assert nearer.config().model.global_batch_size == 8
    with pytest.raises(UsageError) as refusal:
        apply_overrides(composed, ["data=mine", "batch=mine"], config_dir=mine)
    assert refusal.value.set_by == (
        "data.global_batch_size (data/mine.yaml:2)",
        "model.global_batch_size (batch/mine.yaml:3)",
    )


@run(max_examples=50)
@given(drawn=st.dictionaries(st.sampled_from(SIZES), st.integers(1, 9), max_size=6))
def test_a_key_is_set_only_by_a_used_spelling_of_its_own(drawn):
    used = {word: 10 * list(SPELLINGS.values()).index(SPELLINGS[word]) + 1 for word in drawn}
    report = ErrorReport()
    entries = Layer.of("here", Precedence.USER, used, report=report).entries
    assert report.errors == []
    assert {key for key in entries if key not in FOREIGN} == {SPELLINGS[word] for word in used}
    for key, entry in entries.items():
        if key not in FOREIGN:
            assert entry.by in used
            assert SPELLINGS[entry.by] == key


@pytest.mark.parametrize(
    "typed",
    [
        words(RAMP),
        ["per_device_batch_size=4", "gradient_accumulation_steps=2"],
        ["enable_rampup_batch_size=false"],
        ["data.global_batch_size=1024", "trainer.strategy.tensor_model_parallel_size=2"],
        ["ici_tensor_parallelism=2", "dcn_tensor_parallelism=2", "ici_fsdp_parallelism=-1"],
    ],
    ids=lambda typed: typed[0],
)
def test_words_mean_the_same_on_the_command_line_and_in_a_recipe(typed):
    choices = ("model=gpt3_5b", "batch=nemo_gpt3", "trainer.num_nodes=16", "trainer.devices=8")
    on_the_line, in_recipe = resolved_with(compose(*choices), *typed), compose(*choices, *typed)
    assert dict(leaves(on_the_line.config)) == dict(leaves(resolve(in_recipe).config))
    assert on_the_line.plan == resolve(in_recipe).plan


@pytest.mark.parametrize(
    "typed",
    [
        ["model.step_batch_size_schedule='0:768 1B:1536'"],
        ["model.global_batch_size=1024", "parallel.tensor_parallel_size=2"],
        ["optim.warmup_samples=5K", "trainer.max_tokens=5B"],
        words(RAMP),
        ["per_device_batch_size=4", "gradient_accumulation_steps=2"],
        ["data.global_batch_size=1024", "trainer.strategy.tensor_model_parallel_size=2"],
        ["train.global_batch_size=1024", "dcn_tensor_parallelism=2", "ici_fsdp_parallelism=-1"],
    ],
    ids=lambda typed: typed[0],
)
def test_words_on_the_command_line_and_assignments_in_python_give_the_same_snapshot_and_plan(
    composed, recipe, typed
):
    for word in typed:
        key, _, value = word.partition("=")
        put(recipe, key, value.strip("'"))
    on_the_line, in_python = resolved_with(composed, *typed), resolve(recipe)
    assert dict(leaves(on_the_line.config)) == dict(leaves(in_python.config))
    assert on_the_line.plan == in_python.plan
