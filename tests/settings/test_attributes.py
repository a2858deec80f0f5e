"""Words of other systems, and names that do not exist, as attributes of a recipe."""

import ast
import copy
import dataclasses
import re
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import PYTHON, Precedence, edited_stack
from rampcli.config.values import put
from rampcli.errors import ErrorReport, UsageError, shown
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import foreign_words, leaves, settings
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig
from rampcli.words import COMBINED, FOREIGN, SPELLINGS

CHOICES = (
    *("model=gpt3_5b", "batch=nemo_gpt3", "optim=nemo_adam"),
    *("trainer.num_nodes=16", "trainer.devices=8", "parallel.tensor_parallel_size=2"),
)
VALUES = {
    int: st.integers(1, 9),
    float: st.floats(1, 9),
    bool: st.booleans(),
    str: st.sampled_from(["0:768 250B:1536", "samples:0:8"]),
    list[int]: st.lists(st.integers(1, 9), min_size=3, max_size=3),
}
ASSIGNED = st.sampled_from(sorted(FOREIGN)).flatmap(
    lambda word: st.tuples(st.just(word), st.none() | VALUES[foreign_words()[word].type])
)
NAMES = {
    key: [key, *(word for word, ours in SPELLINGS.items() if ours == key)]
    for key in SPELLINGS.values()
}


def made():
    return compose(*CHOICES)


def assign(config, key, value):
    """Does what the statement `config.KEY = VALUE` does."""
    *sections, name = key.split(".")
    setattr(attrgetter(".".join(sections))(config) if sections else config, name, value)


def read(config, key):
    return attrgetter(key)(config)


def layer_of(config):
    return edited_stack(config, PYTHON, Precedence.USER, report=ErrorReport()).overrides[-1]


def refusal_of(stack):
    with pytest.raises(UsageError) as refusal:
        resolve(stack)
    return refusal.value


@pytest.mark.parametrize("word", sorted(FOREIGN))
@given(data=st.data())
@run(max_examples=5)
def test_an_assigned_word_is_read_back_and_means_what_it_means_on_the_command_line(word, data):
    value = data.draw(st.none() | VALUES[foreign_words()[word].type])
    recipe = made()
    assign(recipe, word, value)
    typed = f"{word}='{value}'" if isinstance(value, str) else f"{word}={shown(value)}"
    stack = apply_overrides(made(), [typed], place=PYTHON)
    assert layer_of(recipe) == stack.overrides[-1]
    assert read(recipe, word) == value


@given(drawn=st.lists(ASSIGNED, unique_by=lambda one: SPELLINGS.get(one[0], one[0])))
def test_assigned_words_of_different_settings_mean_what_they_mean_on_the_command_line(drawn):
    drawn.sort(key=lambda one: one[0] in COMBINED)  # which a later setting would unset
    recipe = made()
    for word, value in drawn:
        assign(recipe, word, value)
    typed = [
        f"{word}='{value}'" if isinstance(value, str) else f"{word}={shown(value)}"
        for word, value in drawn
    ]
    stack = apply_overrides(made(), typed, place=PYTHON)
    assert layer_of(recipe) == stack.overrides[-1]


@given(data=st.data(), key=st.sampled_from(sorted(NAMES)))
def test_the_last_assignment_applies_in_whichever_words(data, key):
    recipe = made()
    values = VALUES[settings()[key].type]
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(NAMES[key]), values), min_size=1))
    for name, value in drawn:
        assign(recipe, name, value)
    name, value = drawn[-1]
    assert all(read(recipe, each) == value for each in NAMES[key])
    stack = edited_stack(recipe, PYTHON, Precedence.USER, report=ErrorReport())
    assert stack.entry(key).value == dict(leaves(recipe))[key] == value


@pytest.mark.parametrize("is_composed", [False, True])
@pytest.mark.parametrize(
    ("words", "key", "values"),
    [
        ({"ici_tensor_parallelism": 4}, "parallel.tensor_parallel_size", (1, 2, 8)),
        ({"ici_tensor_parallelism": 4}, "trainer.strategy.tensor_model_parallel_size", (1, 2)),
        (
            {"ici_pipeline_parallelism": 2, "dcn_pipeline_parallelism": 2},
            "parallel.pipeline_parallel_size",
            (1, 2),
        ),
        ({"ici_fsdp_parallelism": 4}, "parallel.data_parallel_shard_size", (None, 2)),
        (
            {
                "enable_rampup_batch_size": True,
                "per_device_batch_size_start": 4,
                "per_device_batch_size_increment": 2,
                "global_rampup_samples": 500,
            },
            "model.rampup_batch_size",
            (None, [256, 256, 1000]),
        ),
    ],
)
def test_a_setting_that_is_assigned_later_applies_over_the_words_that_decide_it(
    words, key, values, is_composed
):
    typed = [f"{word}={shown(value)}" for word, value in words.items()]
    for value in values:
        recipe = compose(*CHOICES, *(typed if is_composed else []))
        for word, one in {} if is_composed else words.items():
            assign(recipe, word, one)
        assign(recipe, key, value)
        assert read(resolve(recipe).config, SPELLINGS.get(key, key)) == value


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("per_device_batch_size", "model.global_batch_size"),
        ("per_device_batch_size", "data.micro_batch_size"),
        ("gradient_accumulation_steps", "model.global_batch_size"),
    ],
)
def test_a_value_of_the_recipe_that_is_assigned_after_a_word_counts_as_typed(word, key):
    recipe = made()
    value = read(recipe, key)
    assign(recipe, word, 4)
    assert read(resolve(recipe).config, key) != value
    assign(recipe, key, value)
    stack = apply_overrides(made(), [f"{word}=4", f"{key}={shown(value)}"], place=PYTHON)
    assert layer_of(recipe) == stack.overrides[-1]
    if word == "gradient_accumulation_steps":
        assert all(
            f"{one} (Python)" in str(refusal_of(recipe)) for one in (f"{word}=4", f"{key}=2048")
        )
    else:
        assert read(resolve(recipe).config, key) == value


def test_a_word_that_was_not_assigned_reads_what_it_means():
    recipe = compose(*CHOICES, "per_device_batch_size=4")
    assert all(read(recipe, word) == read(recipe, key) for word, key in SPELLINGS.items())
    given = {word: read(recipe, word) for word in COMBINED}
    assert given == {**dict.fromkeys(COMBINED), "per_device_batch_size": 4}


def test_a_word_that_a_recipe_was_composed_with_can_be_unset():
    recipe = compose(*CHOICES, "per_device_batch_size=4")
    assert resolve(recipe).plan.global_batch_size == 512
    recipe.per_device_batch_size = None
    assert resolve(recipe).plan.global_batch_size == 2048


@pytest.mark.parametrize(
    "typed",
    [
        {"per_device_batch_size": 4, "model.global_batch_size": 100},
        {"parallel.tensor_parallel_size": 8, "ici_tensor_parallelism": 4},
        {"data.global_batch_size": 100, "model.rampup_batch_size": None},
        {"train.train_iters": "many"},
        {"enable_rampup_batch_size": True},
    ],
    ids=lambda typed: next(iter(typed)),
)
def test_wrong_words_are_refused_as_on_the_command_line(typed):
    recipe = made()
    for key, value in typed.items():
        assign(recipe, key, value)
    words = [f"{key}={shown(value)}" for key, value in typed.items()]
    with pytest.raises(UsageError) as refusal:
        resolve(apply_overrides(made(), words, place=PYTHON))
    assert str(refusal_of(recipe)) == str(refusal.value)


def test_a_configuration_with_words_is_compared_and_copied_as_plain_data():
    recipe, same = made(), made()
    recipe.data.global_batch_size = same.model.global_batch_size = 16
    assert recipe == same
    recipe.per_device_batch_size = 4
    assert recipe != same
    copied = copy.deepcopy(recipe)
    assert copied == recipe
    assert layer_of(copied) == layer_of(recipe)
    copied.data.global_batch_size, copied.per_device_batch_size = 32, 8
    assert (recipe.model.global_batch_size, recipe.per_device_batch_size) == (16, 4)
    assert (copied.model.global_batch_size, copied.per_device_batch_size) == (32, 8)


def test_a_section_that_is_put_into_a_configuration_belongs_to_it():
    recipe = made()
    recipe.model = ModelConfig(num_layers=2)
    recipe.model.micro_batch_size = 2
    assert recipe.data.micro_batch_size == 2
    other = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data))
    other.model.micro_batch_size = 4
    assert (recipe.data.micro_batch_size, other.data.micro_batch_size) == (2, 4)


def test_a_section_that_is_assigned_later_applies_over_the_words_that_decide_its_settings():
    recipe = made()
    recipe.ici_tensor_parallelism, recipe.parallel = 2, ParallelConfig()
    assert resolve(recipe).config.parallel.tensor_parallel_size == 1


def test_a_default_section_is_one_that_its_class_makes():
    for field in dataclasses.fields(Config):
        if dataclasses.is_dataclass(field.type):
            section = getattr(Config(), field.name)
            assert type(section) is field.type
            assert section == field.type()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("model.global_batchsize", "model.global_batch_size"),
        ("data.seq_length", "data.sequence_length"),
        ("checkpoint.asynch", "checkpoint.async_"),
        ("launch.slurm.partitions", "launch.slurm.partition"),
        ("train.global_batch_sizes", "model.global_batch_size"),
        ("model.head_width", "model.head_size"),
        ("per_device_batchsize", "per_device_batch_size"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_nearest(key, nearest):
    recipe = made()
    wrong = f"^there is no setting {key}; the nearest is {nearest}$"
    with pytest.raises(AttributeError, match=wrong):
        assign(recipe, key, 4)
    if key != "model.head_width":  # a property, which is read but not assigned
        with pytest.raises(AttributeError, match=wrong):
            read(recipe, key)


def test_a_word_that_is_refused_is_refused_as_an_attribute_with_what_to_do_instead():
    for name in ("batch_size", "global_batch_to_train", "nonsense"):
        with pytest.raises(AttributeError, match=rf"^.*\b{name}\b.*; try .*"):
            assign(made(), name, 4)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("optim.lr", "optim.lr = 0.001"),
        ("checkpoint.async_", "checkpoint.async_ = "),
        ("model.rampup_batch_size", "model.rampup_batch_size = None"),
        ("data.global_batch_size", "data.global_batch_size = None"),
        ("per_device_batch_size", "per_device_batch_size = None"),
    ],
)
def test_a_setting_that_is_deleted_stays_and_its_default_is_offered(key, remedy):
    recipe = made()
    before = read(recipe, key)
    *sections, name = key.split(".")
    with pytest.raises(AttributeError, match=f"{key} cannot be deleted; try {remedy}") as refusal:
        delattr(read(recipe, ".".join(sections)) if sections else recipe, name)
    assert read(recipe, key) == before
    default = ast.literal_eval(re.fullmatch(r".* = (.*), its default", str(refusal.value))[1])
    assign(recipe, key, default)
    assert read(recipe, key) == default


def test_a_name_that_does_not_exist_cannot_be_deleted():
    with pytest.raises(AttributeError, match=r"there is no setting optim\.lrr; the nearest is"):
        del made().optim.lrr


def test_a_section_alone_has_no_words():
    with pytest.raises(AttributeError, match=r"the nearest is data\.micro_batch_size"):
        ModelConfig().micro_batch_size = 2


def test_words_are_set_by_key_too():
    recipe = made()
    put(recipe, "trainer.strategy.tensor_model_parallel_size", 4)
    assert recipe.parallel.tensor_parallel_size == 4
