import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.values import put
from rampcli.errors import shown
from rampcli.settings.by_key import flatten, foreign_words, leaves, nest, settings
from rampcli.settings.config import Config
from rampcli.settings.unknown_keys import nearest_keys, unknown_key
from rampcli.words.refused import EPOCHS

ROOT = Path(__file__).parents[2]
NAMES = st.text("abcdefgh_", min_size=1, max_size=4)
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        st.integers(),
        lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
        max_leaves=8,
    ),
)


def test_settings_are_the_leaves_of_the_configuration_in_order_with_defaults():
    assert {key: setting.default for key, setting in settings().items()} == dict(leaves(Config()))
    assert list(settings()) == [key for key, _ in leaves(Config())]


def test_every_leaf_is_found_under_its_dotted_key():
    config = Config()
    config.launch.slurm.time = "1:00"
    assert dict(leaves(config))["launch.slurm.time"] == "1:00"


def test_a_setting_named_like_a_python_keyword_has_an_underscore_in_python_only():
    config = Config()
    put(config, "checkpoint.async", True)
    assert config.checkpoint.async_ is True
    assert dict(leaves(config))["checkpoint.async"] is True
    assert not [key for key in settings() if key.endswith("_")]


def test_every_setting_documents_its_meaning_and_the_meaning_of_null():
    silent = [
        key
        for key, setting in settings().items()
        if not setting.doc or (setting.optional and "`null`" not in setting.doc)
    ]
    assert silent == []


def test_every_default_lies_in_its_own_range():
    ranges = [
        (key, s.default, s.at_least, s.above, s.at_most)
        for key, s in settings().items()
        if type(s.default) in (int, float)
    ]
    assert len(ranges) > 20
    for key, default, at_least, above, at_most in ranges:
        assert at_least is None or default >= at_least, key
        assert above is None or default > above, key
        assert at_most is None or default <= at_most, key


def test_every_number_has_a_lower_bound():
    numbers = [key for key, setting in settings().items() if setting.type in (int, float)]
    endless = [
        key for key in numbers if not settings()[key].range_name().startswith(("from ", "above "))
    ]
    assert endless == ["data.expansion_factor_real_data"]  # in MaxText, -1 disables it


@pytest.mark.parametrize(
    ("key", "type_name", "range_name", "choices"),
    [
        ("seed", "an integer", "from 0 up to 2^62", []),
        ("optim.lr", "a number", "from 0", []),
        ("optim.beta1", "a number", "from 0 below 1", []),
        ("throughput.mfu", "a number", "above 0 up to 1", []),
        ("trainer.num_nodes", "an integer", "from 1 up to 100,000", []),
        ("name", "a string", "", []),
        ("model.rampup_batch_size", "a list of integers", "", []),
        ("model.bias", "true or false", "", ["true", "false"]),
        ("rampup.node_policy", "one of nemo, best, fixed", "", ["nemo", "best", "fixed"]),
        (
            "schedule.batch_coupling",
            "one of none, sqrt, linear, or a number",
            "from 0 up to 2",
            ["none", "sqrt", "linear"],
        ),
        ("rampup.at_boundary", "one of restart, continue", "", ["restart", "continue"]),
    ],
)
def test_a_setting_describes_its_type_range_and_choices(key, type_name, range_name, choices):
    setting = settings()[key]
    assert (setting.type_name(), setting.range_name(), setting.choices) == (
        type_name,
        range_name,
        choices,
    )


@run(max_examples=30)
@given(tree=TREES)
def test_nesting_is_the_inverse_of_flattening(tree):
    flat = flatten(tree)
    assert nest(flat) == tree
    assert not any(isinstance(value, dict) for value in flat.values())


def test_an_empty_section_stays_a_leaf_so_that_it_can_be_refused():
    assert flatten({"model": {"nothing": {}}}) == {"model.nothing": {}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ([256, 128, 50], "[256,128,50]"),
        (0.5, "0.5"),
        ("a b", "a b"),
        ([], "[]"),
    ],
)
def test_a_value_is_shown_as_it_is_typed(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("model.global_batchsize", "model.global_batch_size"),
        ("data.rampup_batchsize", "model.rampup_batch_size"),
        ("trainer.lr", "optim.lr"),
        ("seeed", "seed"),
        ("checkpoint.keep_lasts", "checkpoint.keep_last"),
        ("per_device_batchsize", "per_device_batch_size"),
    ],
)
def test_a_mistyped_key_is_refused_with_the_nearest_key(mistyped, meant):
    error = unknown_key(mistyped)
    assert error.message == f"there is no setting {mistyped}"
    assert error.keys[0] == mistyped
    assert meant in error.remedies


def test_a_mistyped_group_is_refused_with_the_nearest_group():
    assert unknown_key("modell", {"model": None, "data": None}).remedies[0] == "model"


def test_a_key_that_resembles_none_points_to_the_list_of_all():
    assert nearest_keys("zzzzzzzz") == []
    assert "--cfg" in unknown_key("zzzzzzzz").remedy


@pytest.mark.parametrize("word", EPOCHS)
def test_a_word_for_epochs_names_the_page_about_the_length_of_a_run(word):
    for key in (word, f"trainer.{word}"):
        remedy = unknown_key(key).remedy
        (path,) = re.findall(r"docs/[\w/-]+\.md", remedy)
        page = (ROOT / path).read_text(encoding="utf-8")
        assert page.partition("\n")[0].removeprefix("# ") in remedy
        assert "## Epochs" in page


@given(key=st.text("abcdefglmnorstz._", max_size=24))
def test_at_most_three_keys_are_suggested_and_all_of_them_exist(key):
    suggested = nearest_keys(key)
    assert len(suggested) == len(set(suggested)) <= 3
    assert set(suggested) <= {*settings(), *foreign_words()}


@pytest.mark.parametrize("section", ["model", "trainer", "throughput"])
def test_a_section_is_refused_and_its_first_settings_suggested(section):
    error = unknown_key(section)
    assert error.message == f"{section} is a section, not a setting"
    offered = error.remedy.removesuffix(", ...").split(", ")
    assert offered == [key for key in settings() if key.startswith(f"{section}.")][: len(offered)]


def test_keys_are_known_without_importing_hydra():
    code = (
        "import sys, rampcli.settings.by_key as s; s.settings();"
        " print([n for n in ('hydra', 'omegaconf', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
