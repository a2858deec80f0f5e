import re

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from rampcli.config.reading import MOST_VALUES
from rampcli.config.sweeps import LONGEST_FOLDER_NAME, Combination, combinations
from rampcli.errors import ErrorReport

PARSER = OverridesParser.create()
KEYS = ("optim.lr", "seed", "data", "model.rampup_batch_size", "trainer.compile", "data.path")
NUMBERS = st.floats(1e-9, 1e9, allow_nan=False).map(repr) | st.integers(-5, 10**6).map(str)
TEXTS = st.sampled_from(
    ["true", "a", "'a b'", "'a,b'", "[2,2,48]", "[]", "{a:1}", "50M", "a/b.c", "'1'", "1_000"]
)
VALUES = st.lists(NUMBERS | TEXTS, min_size=1, max_size=4, unique=True)
FORMS = st.one_of(
    VALUES.map(",".join),
    VALUES.map(lambda values: ",".join(["null", *values])),
    VALUES.map(lambda values: f"choice({','.join(values)})"),
    st.builds("range({},{},{})".format, *[st.integers(1, 20)] * 3).filter(
        lambda text: len(range(*map(int, re.findall(r"\d+", text)))) > 0
    ),
    st.sampled_from(["range(0.1,0.5,0.1)", "sort(3,1,2)", "sort(range(1,4),reverse=true)"]),
)


def expand(*words, varied_before=()):
    report = ErrorReport()
    found = combinations(words, report=report, varied_before=varied_before)
    report.close()
    return found


def folders(*words, **facts):
    return [one.folder for one in expand(*words, **facts)]


def read(words):
    """Returns what Hydra reads in some words."""
    overrides = PARSER.parse_overrides(list(words))
    return [(override.key_or_group, override.value()) for override in overrides]


@given(st.dictionaries(st.sampled_from(KEYS), FORMS, min_size=1, max_size=3))
def test_the_runs_are_those_of_hydras_own_sweeper_in_its_order(forms):
    words = [f"{key}={text}" for key, text in forms.items()]
    overrides = PARSER.parse_overrides(words)
    report = ErrorReport()
    found = combinations(words, report=report)
    if report.errors:  # nothing varies, two texts are the same value, or there are too many runs
        message = str(report.errors[0])
        assert re.search("no setting lists several values|twice|has at most 1,000 runs", message)
        return
    (batch,) = BasicSweeper.split_arguments(overrides, None)
    assert [read(one.words) for one in found] == [read(words) for words in batch]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(KEYS), st.text(max_size=60), min_size=1),
        min_size=2,
        max_size=2,
        unique_by=str,
    ).filter(lambda pair: pair[0] != pair[1])
)
def test_different_values_have_different_folders_with_safe_names(pair):
    names = [Combination(words=(), values=values).folder for values in pair]
    assert names[0] != names[1]
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9._+,=~-]+", name)
        assert len(name) <= LONGEST_FOLDER_NAME + 9


def test_a_folder_does_not_depend_on_how_its_values_are_written():
    named = ["model.global_batch_size=4,optim.lr=0.001", "model.global_batch_size=4,optim.lr=0.01"]
    for words in (
        ["optim.lr=1e-3,1e-2", "model.global_batch_size=choice(4)"],
        ["data.global_batch_size=choice(4)", "optim.lr=0.001,0.010"],
        ["optim.lr=sort(0.01,0.001)", "model.global_batch_size=range(4,8,4)"],
    ):
        assert folders(*words) == named


def test_a_single_value_counts_if_its_setting_has_varied_before():
    assert folders("seed=1,2", "optim.lr=1e-3") == ["seed=1", "seed=2"]
    assert folders("seed=1", "optim.lr=1e-3", varied_before=["optim.lr"]) == ["optim.lr=0.001"]


def test_a_pattern_lists_the_options_of_a_group():
    assert folders("data=glob(*o*)") == ["data=mock"]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ([f"seed=range(0,{MOST_VALUES})"], MOST_VALUES),
        ([f"seed=range(0,{MOST_VALUES + 1})"], None),
        (["seed=range(0,100)", "optim.lr=range(1,11)"], 1000),
        (["seed=range(0,100)", "optim.lr=range(1,12)"], None),
    ],
)
def test_the_number_of_runs_is_limited(words, runs):
    report = ErrorReport()
    found = combinations(words, report=report)
    assert (len(found), len(report.errors)) == ((runs, 0) if runs else (0, 1))


def test_values_whose_letters_hydra_does_not_know_are_swept():
    report = ErrorReport()
    found = combinations(["name=ä", "data.path=Bücher,Käse"], report=report)
    assert report.errors == []
    assert [one.words for one in found] == [
        ("name=ä", "data.path=Bücher"),
        ("name=ä", "data.path=Käse"),
    ]
