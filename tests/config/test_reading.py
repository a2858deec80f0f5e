import re
import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.groups import group_names
from rampcli.config.layers import build_config
from rampcli.config.reading import is_plain, join_split_lists, parse, quoted, value_of
from rampcli.config.sweeps import read_values
from rampcli.errors import ErrorReport, UsageError, typeable
from rampcli.settings.by_key import settings

GROUPS = {"model", "optim"}


def joined(words):
    report = ErrorReport()
    return join_split_lists(words, report=report), report.errors


def parsed(*words, **options):
    report = ErrorReport()
    return parse(words, groups=GROUPS, place="here", report=report, **options), report.errors


def only_error(*words):
    values, (error,) = parsed(*words)
    assert values == {}
    return error


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (
            ["model.rampup_batch_size=[256,", "128,", "50000000]"],
            ["model.rampup_batch_size=[256, 128, 50000000]"],
        ),
        (["a=1", "b=[1,", "2]", "c=3"], ["a=1", "b=[1, 2]", "c=3"]),
        (["b=[1,2]", "c=3"], ["b=[1,2]", "c=3"]),
        (["b=[[1,", "2],", "[3]]"], ["b=[[1, 2], [3]]"]),
        ([], []),
    ],
)
def test_a_list_that_the_shell_split_is_one_word(typed, meant):
    assert joined(typed) == (meant, [])


@pytest.mark.parametrize(
    ("words", "kept", "unclosed"),
    [
        (["b=[1,", "2", "c=3"], ["c=3"], "b=[1, 2"),
        (["a=1", "b=[1"], ["a=1"], "b=[1"),
        (["b=[1,", "c=[2]"], ["c=[2]"], "b=[1,"),
    ],
)
def test_an_unclosed_bracket_is_reported_and_the_words_after_it_are_read(words, kept, unclosed):
    left, (error,) = joined(words)
    assert left == kept
    assert error.message == f"the bracket in {unclosed} is never closed"
    assert (error.keys, error.set_by) == (("b",), (f"{unclosed} (command line)",))


@given(words=st.lists(st.text("ab=[], .", max_size=6), max_size=6))
def test_joining_drops_only_the_words_of_an_unclosed_bracket(words):
    left, errors = joined(words)
    assert [word for word in left if word.count("[") > word.count("]")] == []
    if not errors:
        assert " ".join(left) == " ".join(words)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("seed=5", "seed", 5),
        ("seed=50M", "seed", "50M"),
        ("optim.lr=3e-4", "optim.lr", 3e-4),
        ("model.bias=true", "model.bias", True),
        ("model.rampup_batch_size=[1, 2,3]", "model.rampup_batch_size", [1, 2, 3]),
        ("model.rampup_batch_size=null", "model.rampup_batch_size", None),
        ("name=", "name", ""),
        ("name='a b'", "name", "a b"),
        ("name='a=b'", "name", "a=b"),
        ("model=llama3_8b", "model", "llama3_8b"),
        (
            "model.step_batch_size_schedule=0:768 250B:1536",
            "model.step_batch_size_schedule",
            "0:768 250B:1536",
        ),
        (
            "model.step_batch_size_schedule=0:768,250B:1536",
            "model.step_batch_size_schedule",
            "0:768,250B:1536",
        ),
        ("rampup.efficiency='1:9000,4:11500'", "rampup.efficiency", "1:9000,4:11500"),
    ],
)
def test_a_word_is_read_as_a_key_and_a_value(word, key, value):
    assert parsed(word) == ({key: value}, [])


@pytest.mark.parametrize("word", ["optim.lr=1", "name='a b'", "model=llama3_8b", "seed=training.x"])
def test_the_section_of_nemos_launcher_is_dropped_from_a_key(word):
    assert parsed(f"training.{word}") == parsed(word)
    assert joined([f"training.{word}", "training.seed"]) == ([word, "seed"], [])
    assert read_values(f"training.{word}", GROUPS) == read_values(word, GROUPS)


@pytest.mark.parametrize(
    "word", ["seed", "seeed=5", "+seed=5,6", "seed=1,2", "name=a=b", "trainer=1"]
)
def test_an_error_names_a_key_without_the_section_of_nemos_launcher(word):
    inside = re.sub(r"^\+?", r"\g<0>training.", word)
    assert str(only_error(inside)) == str(only_error(word))


@pytest.mark.parametrize("prefix", ["+", "++"])
@pytest.mark.parametrize("word", ["data.global_batch_size=64", "name='a b'", "seed=1"])
def test_a_word_that_adds_a_setting_sets_it(prefix, word):
    assert parsed(prefix + word) == parsed(word)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("~seed", {"~seed": None}),
        ("~seed=1", {"~seed": 1}),
        ("~phases.long", {"phases.long": None}),
        ("~phases", {"phases": None}),
        ("~model", {"~model": ""}),
        ("~average", {"~average.ema": None, "~average.merge": None}),
        ("+model=llama3_8b", {"+model": "llama3_8b"}),
        ("optim@model.optim=nemo_adam", {"optim@model.optim": "nemo_adam"}),
        ("checkpoint={every_steps:5}", {"checkpoint.every_steps": 5}),
    ],
)
def test_words_of_hydra_keep_what_they_add_delete_or_choose(word, values):
    assert parsed(word) == (values, [])


def test_a_key_with_two_different_values_is_refused_and_with_equal_ones_accepted():
    values, (error,) = parsed("seed=1", "optim.lr=1", "seed=2")
    assert values == {"seed": 1, "optim.lr": 1}
    assert error.message == "seed is given twice: 1 and 2"
    assert parsed("seed=1", "seed=1") == ({"seed": 1}, [])


def test_the_last_of_several_values_wins_if_repetition_is_allowed():
    values, errors = parsed("seed=1", "optim.lr=1", "seed=2", unique=False)
    assert (list(values.items()), errors) == ([("optim.lr", 1), ("seed", 2)], [])


def test_every_wrong_word_is_reported_and_the_others_are_read():
    values, errors = parsed("seed=5", "foo=1", "seed", "optim.lr=1,2", "model=gpt3_5b")
    assert values == {"seed": 5, "model": "gpt3_5b"}
    assert len(errors) == 3


@pytest.mark.parametrize("text", ["x" * 5000, "9" * 5000, "[" * 100 + "]" * 90, "(" * 3000])
def test_a_very_long_word_gives_a_short_message(text):
    error = only_error(f"seed={text}") if text[0] != "x" else only_error(f"{text}=1")
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("word", "key", "values"),
    [
        ("seed=1,2,3", "seed", ["1", "2", "3"]),
        ("seed=7", "seed", ["7"]),
        ("seed=range(1,4)", "seed", ["1", "2", "3"]),
        ("model=llama3_8b,gpt3_5b", "model", ["llama3_8b", "gpt3_5b"]),
        (
            "model.rampup_batch_size=[8,8,100],[4,4,100],null",
            "model.rampup_batch_size",
            ["[8,8,100]", "[4,4,100]", "null"],
        ),
        ("optim.lr=1e-3,2e-3", "optim.lr", ["0.001", "0.002"]),
    ],
)
def test_the_values_of_a_comparison_are_read_one_by_one(word, key, values):
    assert read_values(word, GROUPS) == (key, values)


@pytest.mark.parametrize("word", ["seed", "foo=1,2", "seed=[1,2", "seed~=1,2"])
def test_a_comparison_without_values_is_refused(word):
    with pytest.raises(UsageError):
        read_values(word, GROUPS)


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\"), max_size=20
    )
)
def test_any_quoted_text_is_read_back_unchanged(text):
    if "${" in text or "???" in text:
        return
    values, errors = parsed(f"name={quoted(text)}")
    assert (values, errors) == ({"name": text}, [])
    assert build_config(values, place="here").name == text


@given(
    st.lists(
        st.sampled_from(["a", "'", '"', "\\", "$HOME", "`id`", " ", "!", "[", "]", "\n", "é"])
    ).map("".join)
)
def test_a_word_quoted_for_a_shell_is_read_back_unchanged(text):
    word = f"name={quoted(text)}"
    printed = subprocess.run(
        ["sh", "-c", f"printf %s {typeable(word)}"], capture_output=True, check=True, text=True
    ).stdout
    assert printed == word


@pytest.mark.parametrize(
    "word",
    [
        "name='a",
        "name='a'b",
        'name=a"b',
        "name=$x`",
        "name=a\\'",
        "seed=range(1,3)",
        "seed=glob(*)",
        "seed=１２",
        "seed=[1",
        "seed=1,2",
        "model.rampup_batch_size=256,128,50M",
    ],
)
def test_the_remedy_for_an_unreadable_word_can_be_read(word):
    remedy = only_error(word).remedy.partition(": ")[2] or only_error(word).remedy
    (tried,) = shlex.split(remedy)
    values, errors = parsed(tried)
    assert (len(values), errors) == (1, [])


@pytest.mark.parametrize("option", ["mine", "nan", "null", "1", "a b", "[x"])
def test_an_option_is_chosen_by_any_name(option):
    values, errors = parsed(f"optim={quoted(option)}")
    assert (values, errors) == ({"optim": option}, [])


@pytest.mark.parametrize("word", ["seed=range(1,1000000000)", "seed=interval(1,9)", "seed=glob(*)"])
def test_values_that_cannot_be_listed_are_refused(word):
    with pytest.raises(UsageError, match="must list 1 to 100 values"):
        read_values(word, GROUPS)


@pytest.mark.parametrize(
    "typed",
    [
        ["data.validation={wiki:a,", "code:b}", "seed=1"],
        ["data.validation={wiki:a,", "code:", "b}", "seed=1"],
        ["data.validation=wiki:a", "data.validation=code:b", "seed=1"],
    ],
)
def test_a_mapping_that_the_shell_split_or_expanded_is_one_word(typed):
    report = ErrorReport()
    joined = join_split_lists(typed, report=report)
    report.close()
    values = parse(joined, groups=(), place="x", report=report)
    assert values == {"data.validation": {"wiki": "a", "code": "b"}, "seed": 1}


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


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.path=Bücher/Käse.txt", "Bücher/Käse.txt"),
        ("data.response_end=<|im_end|>", "<|im_end|>"),
        ("name=a;b", "a;b"),
        ("data.blend=[3,Bücher/a, 1,b]", [3, "Bücher/a", 1, "b"]),
        ("data.validation={wiki:Bücher/a, code:b c}", {"wiki": "Bücher/a", "code": "b c"}),
    ],
)
def test_letters_that_hydra_does_not_know_need_no_quotes(word, value):
    report = ErrorReport()
    key = word.partition("=")[0]
    assert parse([word], groups=(), place="command line", report=report) == {key: value}
    assert report.errors == []


@pytest.mark.parametrize(
    "word", ["name=a'b", "name=a=b", "optim.lr=ü", "data.path=[ü", "data.validation={ü}"]
)
def test_signs_with_a_meaning_are_still_refused(word):
    report = ErrorReport()
    parse([word], groups=(), place="command line", report=report)
    assert len(report.errors) == 1


@pytest.mark.parametrize(
    "word",
    [
        "model.rampup_batch_size=(4,4,800)",
        'model.rampup_batch_size="4 4 800"',
        "model.rampup_batch_size='4, 4, 800'",
        "model.rampup_batch_size=[4,4,800",
    ],
)
def test_a_list_in_another_form_is_answered_with_its_own_values(word):
    report = ErrorReport()
    values = parse([word], groups=(), place="command line", report=report)
    if values:
        with report.noting():
            build_config(values, place="command line")
    (error,) = report.errors
    assert "'model.rampup_batch_size=[4,4,800]'" in error.remedy
