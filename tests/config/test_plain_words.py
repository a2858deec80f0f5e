import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.groups import group_names
from rampcli.config.reading import is_plain, value_of
from rampcli.config.settings import settings


def read_by_hydra(word):
    override = OverridesParser.create().parse_override(word)
    assert not override.is_sweep_override()
    assert override.key_or_group == word.partition("=")[0]
    return override.value()


def with_types(value):
    items = value if isinstance(value, list) else [value]
    return value, type(value), [type(item) for item in items]


ITEMS = (
    st.integers().map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(str)
    | st.from_regex(r"[-+]?[0-9]{0,3}\.?[0-9]{0,3}([eE][-+]?[0-9]{1,3})?", fullmatch=True)
    | st.from_regex(r"[0-9]{1,3}[_0]{0,3}[KMBT_a]?", fullmatch=True)
    | st.sampled_from(["null", "True", "FALSE", "inf", "-Inf", "NaN", "nan.1", "infra", "NULLs"])
    | st.text("aeZ_/.-+01 ~@\\é", max_size=6)
)


@run(max_examples=500)
@given(value=ITEMS | st.lists(ITEMS, max_size=3).map(lambda items: f"[{','.join(items)}]"))
@example(value="1" * 5000)
@example(value="a\n")
@example(value="[]")
@example(value="[,]")
@example(value="/")
def test_a_plain_word_has_the_value_that_hydra_reads(value):
    word = f"model.name={value}"
    if is_plain(word):
        assert with_types(value_of(word)) == with_types(read_by_hydra(word))


@pytest.mark.parametrize(
    "value",
    ["512", "50_000_000", "3e-4", "50M", "fixed", "true", "null", "runs/a-b.1", "[256,128,50M]"],
)
def test_the_values_that_people_type_are_plain(value):
    assert is_plain(f"a.b={value}")


def test_every_setting_and_group_may_have_a_plain_value():
    for key in (*settings(), *group_names()):
        assert read_by_hydra(f"{key}=8") == value_of(f"{key}=8") == 8


@pytest.mark.parametrize("value", ["", "'a'", "a b", "${x}", "1,2", "range(1,3)", "{a:b}", "[[1]]"])
def test_a_value_with_more_grammar_is_left_to_hydra(value):
    assert not is_plain(f"a={value}")
