from fractions import Fraction
from math import gcd
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.config.compose import apply_overrides, compose
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import leaves, settings
from rampcli.settings.data import (
    MOST_SHARES,
    check_document_mask,
    check_source_paths,
    check_split,
    corpora_of,
    describe_data,
    missing_here,
    shares_of,
)
from small_corpora import data_config

WEIGHTS = st.decimals(min_value="0.001", max_value=1000, places=3).map(Fraction)
BLEND = ["0.7", "data/wiki", "0.3", "data/code"]
OF_FILES = ["indexed", "text"]


def config(source="indexed", **data):
    return data_config(source, **data)


def refusal(function, *args):
    with pytest.raises(UsageError) as refused:
        function(*args)
    return refused.value


@given(weights=st.lists(WEIGHTS, min_size=1, max_size=3))
@example(weights=[Fraction("0.7"), Fraction("0.3")])
def test_shares_are_the_smallest_integers_in_the_exact_proportion_of_the_weights(weights):
    shares = shares_of(weights)
    assert all(type(share) is int and share > 0 for share in shares)
    assert gcd(*shares) == 1
    assert [Fraction(share, sum(shares)) for share in shares] == [
        weight / sum(weights) for weight in weights
    ]


@given(weights=st.lists(WEIGHTS, min_size=1, max_size=3), scale=WEIGHTS)
def test_weights_need_not_sum_to_one(weights, scale):
    assert shares_of([scale * weight for weight in weights]) == shares_of(weights)


def test_weights_whose_integer_shares_are_too_large_are_refused():
    assert shares_of([Fraction(MOST_SHARES - 1), Fraction(1)]) == [MOST_SHARES - 1, 1]
    refused = refusal(shares_of, [Fraction(MOST_SHARES), Fraction(1)])
    assert refused.message == "the weights of data.blend have too many digits"
    assert refused.keys == ("data.blend",)
    refused = refusal(corpora_of, config(blend=["0.12345678901", "a", "0.3", "b"]))
    assert refused.remedy == "weights of up to nine digits"


@given(nine_digits=st.integers(1, 10**9 - 1))
def test_weights_of_nine_digits_are_accepted_as_the_remedy_says(nine_digits):
    weight = Fraction(nine_digits, 10**9)
    assert (
        Fraction(shares_of([weight, 1 - weight])[0], sum(shares_of([weight, 1 - weight]))) == weight
    )


def test_a_blend_alternates_weights_and_paths():
    assert corpora_of(config(blend=BLEND)) == [(7, Path("data/wiki")), (3, Path("data/code"))]
    assert corpora_of(config(blend=["5", "one"])) == [(1, Path("one"))]
    assert corpora_of(config(blend=["1e-1", "a", "0.2", "b"])) == [(1, Path("a")), (2, Path("b"))]


def test_one_path_is_a_blend_of_one_corpus():
    assert corpora_of(config(path="data/wiki")) == [(1, Path("data/wiki"))]
    assert corpora_of(config("mock")) == []


def test_a_tilde_in_a_path_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert corpora_of(config(path="~/wiki")) == [(1, Path("/home/somebody/wiki"))]
    assert corpora_of(config(blend=["1", "~/wiki"])) == [(1, Path("/home/somebody/wiki"))]


@pytest.mark.parametrize(
    "source",
    [source for source in settings()["data.source"].choices if source not in (*OF_FILES, "pairs")],
)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "data/wiki"),
        ("blend", BLEND),
        ("blend", ["wrong"]),
        ("validation_path", "data/wiki"),
        ("task", "sort"),
        ("response_end", "."),
    ],
    ids=str,
)
def test_a_path_that_would_not_be_read_is_refused(source, key, value):
    assert [*check_source_paths(config(source))] == []
    (refused,) = check_source_paths(config(source, **{key: value}))
    assert refused.message == f"data.{key} does not apply to data.source={source}"
    assert refused.keys == (f"data.{key}", "data.source")


def test_pairs_need_the_document_mask_which_their_option_sets():
    assert [*check_document_mask(compose("data=pairs", "data.task=sort"))] == []
    (refused,) = check_document_mask(config("pairs", task="sort"))
    assert refused.keys == ("data.document_mask", "data.source")
    assert refused.remedy == "data.document_mask=true"


@pytest.mark.parametrize(
    "split", [[99, 1, 0], [1, 0, 0], [0.98, 0.01, 0.01], [1e-9, 5, 5]], ids=str
)
def test_a_split_has_three_shares(split):
    assert [*check_split(config(path="a", split=split))] == []


@pytest.mark.parametrize(
    ("word", "blend"),
    [
        ("data.blend=[0.7,data/wiki,0.3,data/code]", BLEND),
        ("data.blend=[7,data/wiki,3,data/code]", ["7", "data/wiki", "3", "data/code"]),
        ("data.blend=[1,/mnt/a-b_c.1/wiki]", ["1", "/mnt/a-b_c.1/wiki"]),
        ("data.blend=[1,'with space, and comma']", ["1", "with space, and comma"]),
        ("data.blend=null", None),
    ],
    ids=str,
)
def test_a_blend_is_given_as_a_list(composed, word, blend):
    assert apply_overrides(composed, [word]).config().data.blend == blend


def test_numeric_paths_keep_their_spelling(composed):
    assert apply_overrides(composed, ["data.path=2024"]).config().data.path == "2024"
    assert apply_overrides(composed, ["data.blend=[1,2024]"]).config().data.blend == ["1", "2024"]


def test_a_recipe_may_give_weights_as_numbers(recipe):
    recipe.data.blend = [0.7, "data/wiki", 0.3, "data/code"]
    recipe.data.source = "indexed"
    assert corpora_of(resolve(recipe).config) == [(7, Path("data/wiki")), (3, Path("data/code"))]


@pytest.mark.parametrize(
    "typed", [["data.path=data/wiki"], ["data.blend=[0.7,data/wiki,0.3,data/code]"]], ids=str
)
@pytest.mark.parametrize("option", ["indexed", "text"])
def test_a_recipe_reads_files_with_an_option_and_a_word(composed, option, typed):
    read = resolve(apply_overrides(composed, [f"data={option}", *typed])).config
    assert read.data.source == option
    assert (
        [path.parent for _, path in corpora_of(read)]
        == [Path("data")] * len(corpora_of(read))
        != []
    )


def test_the_options_are_settings_of_corpora_that_pass_the_check():
    for option in ("indexed", "text"):
        made = compose(f"data={option}", "data.path=data/wiki")
        assert [*check_source_paths(made)] == []
        assert dict(leaves(made))["data.path"] == "data/wiki"


@pytest.mark.parametrize(
    ("source", "values", "here"),
    [
        ("text", {"path": "here.txt"}, True),
        ("indexed", {"path": "corpus"}, True),
        ("indexed", {"path": "other"}, False),
        ("pairs", {"path": "here.txt", "validation_path": "other"}, False),
        ("pairs", {"task": "sort"}, True),
    ],
)
def test_files_that_are_not_here_are_named(source, values, here, tmp_path):
    for name in ("here.txt", "corpus.idx"):
        (tmp_path / name).touch()
    made = config(source, **values)
    key = "validation_path" if "validation_path" in values else "path"
    assert missing_here(made) == ([] if here else [f"data.{key}=other"])
    made.model.init_from = "nowhere"
    assert missing_here(made)[-1] == "model.init_from=nowhere"
    made.model.init_from = f"org/name@{'1' * 40}"  # a model of the hub, which every machine can get
    assert "model.init_from" not in "".join(missing_here(made))


@pytest.mark.parametrize(
    ("source", "data", "text"),
    [
        ("mock", {}, "mock (random tokens)"),
        ("stdlib", {}, "stdlib (source of Python's standard library, as bytes)"),
        ("indexed", {"path": "data/wiki"}, "indexed data/wiki"),
        ("text", {"blend": BLEND}, "text 0.7 x data/wiki + 0.3 x data/code"),
        ("pairs", {"task": "sort"}, "pairs, data.task=sort"),
        ("of_an_extension", {}, "of_an_extension"),
    ],
)
def test_data_are_described_by_their_source_and_their_files(source, data, text):
    assert describe_data(config(source, **data)) == text
